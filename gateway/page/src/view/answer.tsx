import { useSignal } from "@preact/signals";

import { answerAgain, compareWithOff, isRunning } from "../state/chat";
import type { TurnCell } from "../state/running";
import { settings } from "../state/settings";
import { isPlain, type Turn } from "../state/turn";
import { Markdown } from "../text/markdown";
import { copyText } from "./copying";
import { Icon } from "./icons";
import { Race } from "./race";
import { Tokens } from "./tokens";

/** A message and its answer. */
export function Answer({ cell, isLast }: { cell: TurnCell; isLast: boolean }) {
  const turn = cell.value;
  return (
    <article class="turn" aria-label={`Turn ${turn.number}`}>
      <div class="asked">
        <p>{turn.prompt}</p>
      </div>
      <div class={`answer ${settings.value.colours ? "coloured" : ""} ${turn.state}`}>
        {turn.text === "" && turn.state !== "ended" ? (
          <p class="waiting">
            <span class="hidden">Waiting for the first word</span>
            <i />
            <i />
            <i />
          </p>
        ) : (
          <Tokens tokens={turn.tokens}>
            <Markdown text={turn.text} tokens={turn.tokens} />
          </Tokens>
        )}
        <Ending turn={turn} />
        {turn.state === "ended" && <Actions cell={cell} isLast={isLast} />}
        <Race turn={turn} />
      </div>
    </article>
  );
}

const ENDINGS: Record<string, string> = {
  FINISH_REASON_CANCELLED: "You stopped this answer.",
  FINISH_REASON_MAX_TOKENS: "The answer reached the most tokens that it may have.",
  FINISH_REASON_CONTEXT_LENGTH: "The model’s context is full. Begin a new chat.",
};

function Ending({ turn }: { turn: Turn }) {
  if (turn.state === "lost") return <p class="ending">The connection was lost. Connecting again…</p>;
  if (turn.problem !== "") return <p class="ending bad">{turn.problem}</p>;
  if (turn.notice !== "") return <p class="ending">{turn.notice}</p>;
  const ending = ENDINGS[turn.finishReason];
  return ending === undefined ? null : <p class="ending">{ending}</p>;
}

function Actions({ cell, isLast }: { cell: TurnCell; isLast: boolean }) {
  const turn = cell.value;
  const isCopied = useSignal(false);
  const copy = async () => {
    isCopied.value = await copyText(turn.text);
    setTimeout(() => (isCopied.value = false), 1500);
  };
  const isWhole = turn.statistics !== null && turn.finishReason !== "FINISH_REASON_CANCELLED";
  const canCompare = isLast && isWhole && !isPlain(turn) && turn.comparison === null && turn.problem === "";
  return (
    <div class="actions">
      <button class="quiet small" onClick={() => void copy()}>
        <Icon name={isCopied.value ? "check" : "copy"} /> {isCopied.value ? "Copied" : "Copy"}
      </button>
      {isLast && (
        <button class="quiet small" disabled={isRunning.value} title="Answer again with another seed" onClick={() => void answerAgain()}>
          <Icon name="again" /> Again
        </button>
      )}
      {canCompare && (
        <button class="quiet small" title="Write it once more without hints, with the same seed" onClick={() => void compareWithOff(cell)}>
          <Icon name="race" /> Race it without hints
        </button>
      )}
    </div>
  );
}
