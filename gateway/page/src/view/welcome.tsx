import { server } from "../state/server";
import { send } from "../state/chat";

const EMBEDDED = [
  "What does os.path.join do?",
  "How do I use collections.Counter?",
  "My colleague uses functools.partial everywhere. Why would one need that?",
  "If itertools.groupby vanished tomorrow, what would we lose?",
];
const GENERAL = [
  "Explain how a rainbow forms, in five sentences.",
  "Write a Python function that merges two sorted lists.",
  "Plan a weekend in a city that I do not know.",
  "Rewrite this politely: send me the report now.",
];

/** A sentence as it could come: each word with its origin, and the step in which it comes with hints. */
const DEMO: [string, string, number][] = [
  ["The ", "plain", 1],
  ["draft ", "plain", 2],
  ["runs ", "hinted", 3],
  ["ahead", "hinted", 3],
  [", ", "hinted", 3],
  ["the ", "hinted", 3],
  ["target ", "hinted", 3],
  ["checks ", "recovered", 3],
  ["it ", "hinted", 4],
  ["all ", "hinted", 4],
  ["in ", "hinted", 4],
  ["one ", "hinted", 4],
  ["step", "hinted", 4],
  [".", "plain", 4],
];

/** The same sentence twice: one word a step, and with hints. */
function Demo() {
  return (
    <div class="demo" role="img" aria-label="Alone the target needs 14 steps for this sentence, with hints 4.">
      <span class="lane-name">alone</span>
      <p>
        {DEMO.map(([text], index) => (
          <span key={index} class={`word step-${index + 1}`}>
            {text}
          </span>
        ))}
      </p>
      <span class="lane-steps step-14">14 steps</span>
      <span class="lane-name">with hints</span>
      <p>
        {DEMO.map(([text, origin, step], index) => (
          <span key={index} class={`word token ${origin} step-${step}`}>
            {text}
          </span>
        ))}
      </p>
      <span class="lane-steps step-4">4 steps</span>
    </div>
  );
}

export function Welcome() {
  const prompts = server.value?.target.name === "embedded-target" ? EMBEDDED : GENERAL;
  return (
    <div class="welcome">
      <div class="welcome-inner">
        <h2>
          The same words, <em>sooner.</em>
        </h2>
        <Demo />
        <p class="lead">
          A small model runs ahead and hints at the next words. The large model checks many hints in one step and
          decides every word itself. So you get exactly the text that it writes alone.
        </p>
        <Legend />
        <h3>Ask something</h3>
        <ul class="prompts">
          {prompts.map((prompt) => (
            <li key={prompt}>
              <button class="prompt" disabled={server.value === null} onClick={() => void send(prompt)}>
                {prompt}
              </button>
            </li>
          ))}
        </ul>
      </div>
    </div>
  );
}

export function Legend() {
  return (
    <dl class="legend">
      <div>
        <dt>
          <span class="token hinted">hinted</span>
        </dt>
        <dd>the draft was right: this word cost no step</dd>
      </div>
      <div>
        <dt>
          <span class="token recovered">recovered</span>
        </dt>
        <dd>the draft was wrong: the target’s word stands here</dd>
      </div>
      <div>
        <dt>
          <span class="token plain">plain</span>
        </dt>
        <dd>the target’s own word, one a step</dd>
      </div>
    </dl>
  );
}
