/** The open conversation: what it shows, and what can be done with it. */

import { computed, signal } from "@preact/signals";

import type { GenerationSettings, TurnTrace } from "../api/contract";
import * as api from "../api/sessions";
import { follow, type TurnCell } from "./running";
import { attempt, type Conversation, conversationWith, refreshSessions, report, server, sessions } from "./server";
import { freshName, freshSeed, privacyOf, settings, turnSettings } from "./settings";
import { applyEvent, exportedTurn, newTurn, rateOf, rewind, type Turn } from "./turn";

const COLOURED_TURNS = 20;
const LONGEST_TITLE = 100;

/** The open session; empty while a conversation has no message yet. */
export const sessionId = signal("");
export const system = signal("");
export const turns = signal<TurnCell[]>([]);
/** True while the open conversation is not there yet: it is read, or its session is created. */
export const loading = signal(true);
export const trace = signal<TurnTrace | null>(null);

export const lastTurn = computed<Turn | null>(() => turns.value.at(-1)?.value ?? null);
export const isRunning = computed(() => lastTurn.value !== null && lastTurn.value.state !== "ended");

/** True if a message that is sent now is the next one of the open conversation. */
export const takesMessage = computed(() => server.value !== null && !loading.value && !isRunning.value);

let watching = new AbortController();

/** Close the open session; its turn goes on at the server. */
function leave(): AbortSignal {
  watching.abort();
  watching = new AbortController();
  trace.value = null;
  return watching.signal;
}

export function openNew(): void {
  leave();
  loading.value = false;
  sessionId.value = "";
  system.value = "";
  turns.value = [];
}

/** Open the session that the page's address names. */
export function followAddress(): void {
  const id = location.hash.slice(1);
  if (!/^[0-9a-f]{16}$/.test(id)) openNew();
  else if (id !== sessionId.value || turns.value.length === 0) void openSession(id);
}

/** Open a session. A turn that runs is watched from its beginning. */
export async function openSession(id: string): Promise<void> {
  const left = leave();
  sessionId.value = id;
  turns.value = [];
  loading.value = true;
  const found = await attempt(() => Promise.all([api.getSession(id), api.exportedTurns(id)]));
  if (left.aborted) return;
  loading.value = false;
  if (found === undefined) return;
  const [current, exported] = found;
  system.value = exported.system;
  const cells = exported.turns.map((turn) => signal(exportedTurn(id, turn)));
  const running = current.session.runningTurn;
  if (running !== undefined && !exported.turns.some((turn) => turn.turn === running)) {
    const asked = current.messages?.findLast((message) => message.role === "ROLE_USER")?.content ?? "";
    cells.push(signal(newTurn(id, running, asked)));
  }
  turns.value = cells;
  void colour(cells, left);
  const last = cells.at(-1);
  if (last?.value.state === "waiting") await finishTurn(last, left);
  else if (last) await loadTrace(id, left);
}

/** Learn the origins of ended turns' tokens, the newest first. Turns that the server has not kept stay plain text. */
async function colour(cells: TurnCell[], left: AbortSignal): Promise<void> {
  for (const cell of cells.slice(-COLOURED_TURNS).reverse()) {
    if (cell.value.state !== "ended") continue;
    const turn = { ...cell.value };
    rewind(turn);
    try {
      for await (const { event } of api.watchTurn(turn.sessionId, turn.number, 0, left)) applyEvent(turn, event, 0);
    } catch {
      if (left.aborted) return;
      continue;
    }
    cell.value = { ...turn, comparison: cell.value.comparison };
  }
}

async function finishTurn(cell: TurnCell, left: AbortSignal): Promise<void> {
  await follow(cell, left);
  if (left.aborted) return;
  await Promise.all([loadTrace(cell.value.sessionId, left), refreshSessions()]);
}

async function loadTrace(id: string, left: AbortSignal): Promise<void> {
  try {
    const loaded = await api.lastTrace(id);
    if (!left.aborted) trace.value = loaded ?? null;
  } catch {
    // The waterfall is only shown where the server has kept the turn.
  }
}

/** Send a message. Without an open session one is created, and its address is shown. */
export async function send(content: string): Promise<boolean> {
  if (sessionId.value === "" && !(await begin(content))) return false;
  await run(newTurn(sessionId.value, nextNumber(), content), turnSettings(settings.value));
  return true;
}

async function begin(content: string): Promise<boolean> {
  const title = [...content.trim().split("\n", 1)[0]!].slice(0, LONGEST_TITLE).join("");
  const asked = settings.value.system.trim();
  const left = watching.signal;
  loading.value = true;
  const session = await attempt(() => api.createSession(asked, { title, conversation: freshName() }));
  if (left.aborted) return false; // another conversation was opened meanwhile
  loading.value = false;
  if (session === undefined) return false;
  leave();
  sessions.value = [session, ...sessions.value];
  sessionId.value = session.id;
  system.value = asked;
  history.pushState(null, "", `#${session.id}`);
  return true;
}

function nextNumber(): number {
  return (turns.value.at(-1)?.value.number ?? 0) + 1;
}

async function run(turn: Turn, chosen: GenerationSettings): Promise<TurnCell> {
  const left = watching.signal;
  trace.value = null;
  const cell: TurnCell = signal({ ...turn, requestId: freshName(), settings: chosen });
  turns.value = [...turns.value, cell];
  await finishTurn(cell, left);
  return cell;
}

export async function stop(): Promise<void> {
  const turn = lastTurn.value;
  if (turn !== null && turn.state !== "ended") await attempt(() => api.cancelTurn(turn.sessionId, turn.number));
}

/** Answer the last message again with another seed, in a fork of the session: the first answer stays. */
export async function answerAgain(): Promise<void> {
  const last = lastTurn.value;
  if (last === null || last.state !== "ended") return;
  const fork = await attempt(() => api.forkSession(last.sessionId, last.number - 1));
  if (fork === undefined) return;
  leave();
  sessions.value = [fork, ...sessions.value];
  sessionId.value = fork.id;
  turns.value = turns.value.slice(0, -1).map((cell) => signal({ ...cell.value, sessionId: fork.id }));
  history.pushState(null, "", `#${fork.id}`);
  const again = newTurn(fork.id, nextNumber(), last.prompt, last.messages);
  const cell = await run(again, turnSettings(settings.value, freshSeed()));
  if (cell.value.text === last.text && temperature() === 0) {
    cell.value = { ...cell.value, notice: "The same words: at temperature 0 no chance is involved. Settings has it." };
  }
}

/** The temperature of the next turn. */
function temperature(): number {
  const chosen = settings.value.temperature;
  return chosen === "" ? (server.value?.target.samplingDefaults?.temperature ?? 0) : Number(chosen);
}

/** Answer the last message again without hints, with the same seed, in a fork that is then deleted. */
export async function compareWithOff(cell: TurnCell): Promise<void> {
  const { sessionId: id, number, prompt, messages, seed, text } = cell.value;
  const left = watching.signal;
  const tell = (changed: Partial<NonNullable<Turn["comparison"]>>) => {
    const before = cell.value.comparison ?? { running: true, tokenCount: 0, rate: null, same: null, problem: "" };
    cell.value = { ...cell.value, comparison: { ...before, ...changed } };
  };
  tell({ running: true, tokenCount: 0, rate: null, same: null, problem: "" });
  const begun = await attempt(() => Promise.all([api.turnSettings(id, number), api.forkSession(id, number - 1)]));
  if (begun === undefined) {
    tell({ running: false, problem: "The comparison could not begin." });
    return;
  }
  const [used, fork] = begun;
  const plain = { ...used, sampling: { ...used.sampling, seed }, speculation: { off: {} }, ...privacyOf(settings.value) };
  const other: TurnCell = signal({ ...newTurn(fork.id, number, prompt, messages), requestId: freshName(), settings: plain });
  const watch = other.subscribe((turn) => tell({ tokenCount: turn.tokens.length, rate: rateOf(turn) }));
  try {
    await follow(other, left);
    const turn = other.value;
    tell({ running: false, same: turn.problem === "" ? turn.text === text : null, problem: turn.problem });
  } finally {
    watch();
    await api.deleteSession(fork.id).catch(report);
  }
}

/** Give all versions of a conversation another title. */
export async function renameConversation(conversation: Conversation, title: string): Promise<void> {
  await attempt(() => Promise.all(conversation.versions.map((each) => api.renameSession(each, title))));
  await refreshSessions();
}

/** Delete all versions of a conversation. */
export async function deleteConversation({ versions: all }: Conversation): Promise<void> {
  const isOpen = all.some((each) => each.id === sessionId.value);
  await attempt(() => Promise.all(all.map((each) => api.deleteSession(each.id))));
  if (isOpen) {
    openNew();
    history.replaceState(null, "", "#");
  }
  await refreshSessions();
}

/** Return the open session's versions, oldest first, and which of them is open. */
export const versions = computed(() => {
  const all = conversationWith(sessionId.value)?.versions ?? [];
  return { all, index: all.findIndex((each) => each.id === sessionId.value) };
});
