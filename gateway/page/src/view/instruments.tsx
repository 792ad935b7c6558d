import { lastTurn, trace, turns } from "../state/chat";
import { isPlain, rateOf, stepCount, type Turn } from "../state/turn";
import { Acceptance } from "./acceptance";
import { factor, rate } from "./numbers";
import { Waterfall } from "./waterfall";

/** How the last answer came: its speed, what became of the hints, and its rounds. */
export function Instruments() {
  const turn = lastTurn.value;
  if (turn === null) return null;
  return (
    <div class="instruments">
      <Speed turn={turn} />
      <Origins turn={turn} />
      {turn.statistics && <Acceptance statistics={turn.statistics} />}
      {trace.value && turn.state === "ended" && <Waterfall trace={trace.value} />}
      {turn.seed !== "" && (
        <p class="seed">
          seed <code>{turn.seed}</code>
        </p>
      )}
    </div>
  );
}

interface Off {
  rate: number;
  source: string;
  isEstimate: boolean;
}

/** The speed without hints: measured by a comparison, or by an earlier turn, or else a lower bound. */
function offOf(turn: Turn): Off | null {
  const compared = turn.comparison;
  if (compared?.rate && !compared.running) {
    return { rate: compared.rate, source: "measured: this answer again, without hints", isEstimate: false };
  }
  const plain = turns.value.map((cell) => cell.value).findLast((each) => each !== turn && each.state === "ended" && isPlain(each));
  const measured = plain === undefined ? null : rateOf(plain);
  if (measured !== null) return { rate: measured, source: `measured: turn ${plain!.number}`, isEstimate: false };
  const now = rateOf(turn);
  if (now === null || turn.tokens.length === 0) return null;
  const source = "estimate, at least: one token a step, at this answer’s steps";
  return { rate: (now * stepCount(turn)) / turn.tokens.length, source, isEstimate: true };
}

function Speed({ turn }: { turn: Turn }) {
  const now = rateOf(turn);
  const hasHints = turn.tokens.some((token) => token.origin === "hinted" || token.origin === "recovered");
  const plain = turn.state === "ended" ? isPlain(turn) : turn.tokens.length > 0 && !hasHints;
  const off = plain || turn.tokens.every((token) => token.origin === "unknown") ? null : offOf(turn);
  const most = Math.max(now ?? 0, off?.rate ?? 0, 1);
  return (
    <section class="speed" aria-label="Speed">
      <p class="big">
        <b>{now === null ? "–" : rate(now)}</b> <span>tokens/s</span>
        {now !== null && off !== null && !off.isEstimate && <span class="factor">{factor(now / off.rate)}</span>}
      </p>
      <Lane name={plain ? "off" : "hints"} value={now} most={most} kind="with" />
      {off && <Lane name="off" value={off.rate} most={most} kind={off.isEstimate ? "estimate" : "off"} />}
      {off && <p class="source">{`off: ${off.source}`}</p>}
    </section>
  );
}

function Lane({ name, value, most, kind }: { name: string; value: number | null; most: number; kind: string }) {
  return (
    <div class={`lane ${kind}`}>
      <span>{name}</span>
      <span class="track">
        <i style={{ width: `${((value ?? 0) / most) * 100}%` }} />
      </span>
      <span class="figure">{value === null ? "" : rate(value)}</span>
    </div>
  );
}

/** The share of each origin. */
function Origins({ turn }: { turn: Turn }) {
  const known = turn.tokens.filter((token) => token.origin !== "unknown");
  if (known.length === 0) return null;
  const kinds = ["hinted", "recovered", "plain"] as const;
  const counts = kinds.map((kind) => known.filter((token) => token.origin === kind).length);
  return (
    <section aria-label="Origins of the tokens">
      <h2>
        {known.length} tokens in {stepCount(turn)} steps
      </h2>
      <div class="shares" aria-hidden="true">
        {kinds.map((kind, index) => counts[index]! > 0 && <i key={kind} class={kind} style={{ flexGrow: counts[index] }} />)}
      </div>
      <ul class="counts">
        {kinds.map((kind, index) => (
          <li key={kind}>
            <span class={`token ${kind}`}>{kind}</span> <span class="figure">{counts[index]}</span>
          </li>
        ))}
      </ul>
      <p class="source">Point at a word of the answer to see what else could have come.</p>
    </section>
  );
}
