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

/** A sentence as it could come: each word with the origin that it might have. */
const DEMO: [string, string][] = [
  ["The ", "plain"],
  ["draft ", "plain"],
  ["runs ", "hinted"],
  ["ahead", "hinted"],
  [", ", "hinted"],
  ["the ", "hinted"],
  ["target ", "hinted"],
  ["checks ", "recovered"],
  ["it ", "plain"],
  ["all ", "hinted"],
  ["in ", "hinted"],
  ["one ", "hinted"],
  ["step", "hinted"],
  [".", "plain"],
];

export function Welcome() {
  const prompts = server.value?.target.name === "embedded-target" ? EMBEDDED : GENERAL;
  return (
    <div class="welcome">
      <div class="welcome-inner">
        <h2>
          The same words, <em>sooner.</em>
        </h2>
        <p class="demo" aria-hidden="true">
          {DEMO.map(([text, origin], index) => (
            <span key={index} class={`token ${origin} step-${index}`}>
              {text}
            </span>
          ))}
        </p>
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
