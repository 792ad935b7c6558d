import { useEffect, useRef } from "preact/hooks";

import { isRunning, lastTurn, loading, openSession, system, turns, versions } from "../state/chat";
import { Answer } from "./answer";
import { Icon } from "./icons";
import { Instruments } from "./instruments";

export function ConversationView() {
  const scroller = useRef<HTMLDivElement>(null);
  const follows = useRef(true);
  const last = lastTurn.value;
  useEffect(() => {
    follows.current = true;
  }, [turns.value.length]);
  useEffect(() => {
    const area = scroller.current!;
    if (follows.current) area.scrollTop = area.scrollHeight;
  });
  return (
    <div
      class="scroller"
      ref={scroller}
      tabIndex={0}
      role="region"
      aria-label="Conversation"
      onScroll={({ currentTarget: area }) => {
        follows.current = area.scrollHeight - area.scrollTop - area.clientHeight < 40;
      }}
    >
      <div class="conversation" aria-busy={loading.value}>
        <Versions />
        {system.value !== "" && (
          <details class="system">
            <summary>System prompt</summary>
            <p>{system.value}</p>
          </details>
        )}
        {turns.value.map((cell, index) => (
          <Answer key={`${cell.value.sessionId}/${index}`} cell={cell} isLast={index === turns.value.length - 1} />
        ))}
        <details class="only-medium under">
          <summary>How the last answer came</summary>
          <Instruments />
        </details>
      </div>
      <p class="hidden" role="status" aria-live="polite">
        {last === null ? "" : isRunning.value ? "The answer is being written." : `Answer: ${last.text}`}
      </p>
    </div>
  );
}

/** The versions of a conversation: each answer that was given again is one. */
function Versions() {
  const { all, index } = versions.value;
  if (all.length < 2) return null;
  const open = (at: number) => {
    const id = all[at]!.id;
    history.pushState(null, "", `#${id}`);
    void openSession(id);
  };
  return (
    <div class="versions" role="group" aria-label="Versions of this conversation">
      <button class="quiet small" aria-label="Earlier version" disabled={index === 0} onClick={() => open(index - 1)}>
        <Icon name="left" />
      </button>
      <span>
        Version {index + 1} of {all.length}
      </span>
      <button class="quiet small" aria-label="Later version" disabled={index === all.length - 1} onClick={() => open(index + 1)}>
        <Icon name="right" />
      </button>
    </div>
  );
}
