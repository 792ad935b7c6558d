/** One turn as the page knows it, and what each event changes. */

import {
  type ExportedTurn,
  type GenerationSettings,
  type Message,
  seconds,
  type SpeculationStatistics,
  type TokenLogprob,
  type TurnDelta,
  type TurnEnd,
  type TurnEvent,
} from "../api/contract";

export type Origin = "hinted" | "recovered" | "plain" | "unknown";

export interface Alternative {
  text: string;
  logprob: number;
}

export interface Token {
  text: string;
  origin: Origin;
  /** The contract's name of the origin, without its prefix. */
  detail: string;
  logprob: number | null;
  alternatives: Alternative[];
}

export interface Comparison {
  running: boolean;
  tokenCount: number;
  rate: number | null;
  same: boolean | null;
  problem: string;
}

export interface Turn {
  sessionId: string;
  number: number;
  requestId: string;
  prompt: string;
  /** The messages that it answers. Empty: the prompt is the user's only one. */
  messages: Message[];
  text: string;
  tokens: Token[];
  state: "waiting" | "running" | "lost" | "ended";
  seed: string;
  settings: GenerationSettings | null;
  finishReason: string;
  problem: string;
  /** What the page says about the answer. */
  notice: string;
  statistics: SpeculationStatistics | null;
  generatedCount: number;
  totalSeconds: number;
  /** Times of the beginning and the last delta on this browser's clock, in ms. */
  begunAt: number;
  lastAt: number;
  comparison: Comparison | null;
}

export function newTurn(sessionId: string, number: number, prompt: string, messages: Message[] = []): Turn {
  return {
    sessionId,
    number,
    requestId: "",
    prompt,
    messages,
    text: "",
    tokens: [],
    state: "waiting",
    seed: "",
    settings: null,
    finishReason: "",
    problem: "",
    notice: "",
    statistics: null,
    generatedCount: 0,
    totalSeconds: 0,
    begunAt: 0,
    lastAt: 0,
    comparison: null,
  };
}

export function exportedTurn(sessionId: string, exported: ExportedTurn): Turn {
  const messages = exported.messages ?? [];
  const turn = newTurn(sessionId, exported.turn, exported.content || messages.map(textOf).join("\n\n"), messages);
  turn.state = "ended";
  turn.text = exported.text ?? "";
  turn.seed = exported.seed ?? "";
  turn.finishReason = exported.finishReason ?? "";
  turn.problem = exported.error?.message ?? "";
  turn.generatedCount = exported.tokenIds?.length ?? 0;
  return turn;
}

function textOf(message: Message): string {
  return message.content ?? (message.parts ?? []).map((part) => part.text ?? "").join("");
}

/** Forget what events have told, to be told again from the turn's beginning. */
export function rewind(turn: Turn): void {
  turn.text = "";
  turn.tokens = [];
}

/** Change a turn by one of its events. */
export function applyEvent(turn: Turn, event: TurnEvent, now: number): void {
  turn.number = event.turn;
  if (event.started) {
    turn.seed = event.started.seed ?? "0";
    turn.begunAt ||= now;
    if (turn.state !== "ended") turn.state = "running";
  }
  if (event.delta) addDelta(turn, event.delta, now);
  const end = event.finished ?? event.failed;
  if (end) finish(turn, end);
  if (event.finished) turn.finishReason = event.finished.finishReason;
  if (event.failed) turn.problem = event.failed.error?.message ?? "The turn failed.";
}

function addDelta(turn: Turn, delta: TurnDelta, now: number): void {
  turn.text += delta.text ?? "";
  turn.tokens.push(...tokensOf(delta));
  turn.lastAt = now;
}

function finish(turn: Turn, end: TurnEnd): void {
  if (end.text) {
    turn.text += end.text;
    turn.tokens.push({ text: end.text, origin: "unknown", detail: "", logprob: null, alternatives: [] });
  }
  turn.state = "ended";
  turn.statistics = end.speculation ?? null;
  turn.generatedCount = end.usage?.generatedTokenCount ?? 0;
  turn.totalSeconds = seconds(end.timing?.total);
}

function tokensOf(delta: TurnDelta): Token[] {
  const bytes = new TextEncoder().encode(delta.text ?? "");
  const decoder = new TextDecoder();
  let start = 0;
  return (delta.tokenIds ?? []).map((_, index) => {
    const end = start + (delta.tokenTextByteCounts?.[index] ?? 0);
    const text = decoder.decode(bytes.slice(start, end));
    start = end;
    const detail = (delta.tokenOrigins?.[index] ?? "").replace("TOKEN_ORIGIN_", "");
    const logprobs = delta.logprobs?.[index];
    return {
      text,
      detail,
      origin: originOf(detail),
      logprob: logprobs ? Number(logprobs.logprob ?? 0) : null,
      alternatives: (logprobs?.top ?? []).map(alternativeOf),
    };
  });
}

function originOf(detail: string): Origin {
  if (detail === "") return "unknown";
  if (detail === "RECOVERED") return "recovered";
  return detail === "PLAIN" || detail === "BONUS" ? "plain" : "hinted";
}

function alternativeOf(top: TokenLogprob): Alternative {
  const bytes = Uint8Array.from(atob(top.tokenBytes ?? ""), (character) => character.charCodeAt(0));
  return { text: new TextDecoder().decode(bytes), logprob: Number(top.logprob ?? 0) };
}

/** Tokens a second from the turn's beginning: the server's clock once it has ended, this browser's before. */
export function rateOf(turn: Turn): number | null {
  if (turn.state === "ended") {
    return turn.generatedCount > 0 && turn.totalSeconds > 0 ? turn.generatedCount / turn.totalSeconds : null;
  }
  const elapsed = (turn.lastAt - turn.begunAt) / 1000;
  return turn.tokens.length > 1 && elapsed > 0.02 ? turn.tokens.length / elapsed : null;
}

/** Steps of the target in which it chose the turn's tokens: each ends with a token of its own. */
export function stepCount(turn: Turn): number {
  return turn.tokens.filter((token) => token.origin === "plain" || token.origin === "recovered").length;
}

export function isPlain(turn: Turn): boolean {
  return turn.statistics !== null && (turn.statistics.draftTokenCount ?? 0) === 0;
}
