import { type Exchange, type Round, seconds, type TurnTrace } from "../api/contract";
import { milliseconds } from "./numbers";

const MOST_ROUNDS = 24;

/** The rounds of the last answer over time: the draft's work above the target's. */
export function Waterfall({ trace }: { trace: TurnTrace }) {
  const rounds = trace.rounds ?? [];
  if (rounds.length === 0) return null;
  const shown = rounds.slice(0, MOST_ROUNDS);
  const whole = Math.max(...shown.map((round) => seconds(round.start) + seconds(round.total)), 1e-6);
  return (
    <section aria-label="Rounds over time">
      <h2>
        {trace.roundCount ?? rounds.length} rounds in {milliseconds(seconds(trace.total))}
      </h2>
      <ol class="rounds">
        {shown.map((round) => (
          <RoundRow key={round.number} round={round} whole={whole} />
        ))}
      </ol>
      <p class="key">
        <i class="propose" /> draft <i class="verify" /> target <i class="wait" /> waiting
      </p>
      {rounds.length > shown.length && <p class="source">the first {shown.length} rounds</p>}
    </section>
  );
}

function RoundRow({ round, whole }: { round: Round; whole: number }) {
  const drafted = round.draftTokenCount ?? 0;
  const what = drafted > 0 ? `${round.acceptedTokenCount ?? 0} of ${drafted} hints accepted` : "no hints";
  const told = `Round ${round.number}: ${round.committedTokenCount ?? 0} tokens, ${what}, ${milliseconds(seconds(round.total))}`;
  return (
    <li title={told}>
      <span class="hidden">{told}</span>
      <span class="span" aria-hidden="true">
        {(round.exchanges ?? []).map((exchange, index) => (
          <Bar key={index} exchange={exchange} whole={whole} />
        ))}
      </span>
      <span class="figure" aria-hidden="true">
        +{round.committedTokenCount ?? 0}
      </span>
    </li>
  );
}

function Bar({ exchange, whole }: { exchange: Exchange; whole: number }) {
  const total = seconds(exchange.total);
  const share = total > 0 ? Math.min(seconds(exchange.forward) / total, 1) : 0;
  const kind = exchange.kind === "KIND_PROPOSE" ? "propose" : "verify";
  const left = (seconds(exchange.start) / whole) * 100;
  return (
    <i class={`exchange ${kind}`} style={{ left: `${left}%`, width: `${Math.max((total / whole) * 100, 0.6)}%` }}>
      <i style={{ width: `${share * 100}%` }} />
    </i>
  );
}
