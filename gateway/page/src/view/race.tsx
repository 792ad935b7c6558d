import { rateOf, type Turn } from "../state/turn";
import { Icon } from "./icons";
import { factor, milliseconds, rate } from "./numbers";

const SHOWN_SECONDS = 3;

/** An answer against itself without hints: how far the other one is, and then the verdict. */
export function Race({ turn }: { turn: Turn }) {
  const comparison = turn.comparison;
  if (comparison === null) return null;
  if (comparison.problem !== "") return <p class="verdict bad">{comparison.problem}</p>;
  if (comparison.running) {
    return (
      <p class="verdict" role="status">
        The same once more, without hints: {comparison.tokenCount} of {turn.generatedCount} tokens
      </p>
    );
  }
  if (comparison.same !== true) {
    return (
      <p class="verdict bad" role="status">
        <Icon name="close" /> The text differs. That must not happen: please report it.
      </p>
    );
  }
  const now = rateOf(turn);
  return (
    <div class="race">
      {now !== null && comparison.rate !== null && <Lanes count={turn.generatedCount} now={now} off={comparison.rate} />}
      <p class="verdict good" role="status">
        <Icon name="check" />
        <span>
          The same {turn.generatedCount} tokens. {now !== null && comparison.rate !== null && told(now, comparison.rate)}
        </span>
      </p>
    </div>
  );
}

/** Both answers again as they came, in slow motion if they were too fast to see. */
function Lanes({ count, now, off }: { count: number; now: number; off: number }) {
  const slow = Math.max(SHOWN_SECONDS / (count / Math.min(now, off)), 1);
  const lane = (name: string, kind: string, tokensPerSecond: number) => (
    <div class={`lane ${kind}`}>
      <span>{name}</span>
      <span class="track">
        <i class="runs" style={{ animationDuration: `${(count / tokensPerSecond) * slow}s` }} />
      </span>
      <span class="figure">{milliseconds(count / tokensPerSecond)}</span>
    </div>
  );
  return (
    <div aria-hidden="true">
      {lane("hints", "with", now)}
      {lane("off", "off", off)}
      {slow > 1 && <p class="source">shown {Math.round(slow)} times slower</p>}
    </div>
  );
}

function told(now: number, off: number): string {
  const rates = `${rate(now)} tokens/s with hints, ${rate(off)} without.`;
  if (now >= off * 1.05) return `${factor(now / off)} sooner: ${rates}`;
  return now <= off * 0.95 ? `Hints did not pay here: ${rates}` : `As soon: ${rates}`;
}
