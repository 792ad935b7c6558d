/** Turns that run: begun, watched on when the connection is lost, and shown some thirty times a second. */

import type { Signal } from "@preact/signals";

import type { TurnEvent } from "../api/contract";
import { HttpError } from "../api/http";
import * as api from "../api/sessions";
import { applyEvent, type Turn } from "./turn";
import { pause } from "./waiting";

export type TurnCell = Signal<Turn>;

const FRAME_MS = 33;
/** A long answer is shown less often, since all of its tokens are looked at each time. */
const FRAME_MS_PER_TOKEN = 0.1;
const LONGEST_WAIT_MS = 4000;
const PATIENCE_MS = 120_000;

/** Follow a turn to its end. The turn itself belongs to the server: aborting `signal` only stops watching. */
export async function follow(cell: TurnCell, signal: AbortSignal): Promise<void> {
  const turn = { ...cell.value };
  const show = shower(cell, turn);
  let lostSince: number | null = null;
  for (let wait = 250; ; wait = Math.min(wait * 2, LONGEST_WAIT_MS)) {
    try {
      for await (const { event } of events(turn, signal)) {
        lostSince = null;
        wait = 250;
        applyEvent(turn, event, performance.now());
        show();
      }
      break;
    } catch (error) {
      if (signal.aborted) break;
      lostSince ??= performance.now();
      if (!(error instanceof HttpError && error.isLoss) || performance.now() - lostSince > PATIENCE_MS) {
        giveUp(turn, error);
        break;
      }
      turn.state = "lost";
      show();
      await pause(Math.max(wait, error.retryAfterSeconds * 1000));
    }
  }
  show.now();
}

/** A message sent again watches the turn that is there. Without its name the turn is watched by its number. */
function events(turn: Turn, signal: AbortSignal): AsyncGenerator<{ event: TurnEvent }> {
  const afterTokenCount = turn.tokens.length;
  if (turn.requestId === "" || turn.seed !== "") {
    return api.watchTurn(turn.sessionId, turn.number, afterTokenCount, signal);
  }
  const asked = turn.messages.length > 0 ? { messages: turn.messages } : { content: turn.prompt };
  const message = { ...asked, requestId: turn.requestId, settings: turn.settings ?? {}, afterTokenCount };
  return api.sendMessage(turn.sessionId, message, signal);
}

function giveUp(turn: Turn, error: unknown): void {
  turn.state = "ended";
  turn.problem = error instanceof Error ? error.message : String(error);
}

function shower(cell: TurnCell, turn: Turn): { (): void; now(): void } {
  let timer: number | undefined;
  const now = () => {
    clearTimeout(timer);
    timer = undefined;
    // A comparison is written to the cell by another task.
    cell.value = { ...turn, tokens: turn.tokens, comparison: cell.value.comparison };
  };
  const show = () => {
    timer ??= window.setTimeout(now, Math.max(FRAME_MS, turn.tokens.length * FRAME_MS_PER_TOKEN));
  };
  return Object.assign(show, { now });
}
