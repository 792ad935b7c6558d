/** The server, the list of conversations, and what went wrong with a request. */

import { computed, signal } from "@preact/signals";

import type { ServerInfo, Session } from "../api/contract";
import { HttpError } from "../api/http";
import * as api from "../api/sessions";
import { pause } from "./waiting";

const RETRY_MS = 2000;

export const server = signal<ServerInfo | null>(null);
export const sessions = signal<Session[]>([]);
/** True if the server refuses requests without, or with this, access token. */
export const needsToken = signal(false);
/** A problem to show above the message field. Empty: none. */
export const problem = signal("");

/** Sessions that are versions of one conversation: an answer given again forks its session, metadata included. */
export interface Conversation {
  key: string;
  title: string;
  /** Oldest first. */
  versions: Session[];
  running: boolean;
  lastActive: string;
}

export const conversations = computed<Conversation[]>(() => {
  const groups = new Map<string, Session[]>();
  for (const session of sessions.value) {
    const key = session.metadata?.["conversation"] ?? session.id;
    groups.set(key, [session, ...(groups.get(key) ?? [])]);
  }
  const found = [...groups].map(([key, versions]) => conversationOf(key, versions));
  return found.sort((one, other) => (one.lastActive < other.lastActive ? 1 : -1));
});

function conversationOf(key: string, versions: Session[]): Conversation {
  return {
    key,
    title: versions.map((each) => each.metadata?.["title"] ?? "").find((title) => title !== "") ?? `Session ${key.slice(0, 6)}`,
    versions,
    running: versions.some((each) => each.runningTurn !== undefined),
    lastActive: versions.map((each) => each.lastActiveTime).sort().at(-1)!,
  };
}

export function conversationWith(sessionId: string): Conversation | undefined {
  return conversations.value.find((each) => each.versions.some((version) => version.id === sessionId));
}

/** Run a request, and show what goes wrong. Returns undefined then. */
export async function attempt<Value>(work: () => Promise<Value>): Promise<Value | undefined> {
  try {
    const value = await work();
    problem.value = "";
    return value;
  } catch (error) {
    report(error);
    return undefined;
  }
}

export function report(error: unknown): void {
  if (error instanceof HttpError && error.status === 401) needsToken.value = true;
  else problem.value = error instanceof Error ? error.message : String(error);
}

/** Learn about the server and its sessions. While it cannot be reached, it is asked again. */
export async function refresh(): Promise<void> {
  for (;;) {
    try {
      const [info, listed] = await Promise.all([api.serverInfo(), api.listSessions()]);
      server.value = info;
      sessions.value = listed;
      needsToken.value = false;
      problem.value = "";
      return;
    } catch (error) {
      report(error);
      if (!(error instanceof HttpError && error.isLoss)) return;
    }
    await pause(RETRY_MS);
  }
}

export async function refreshSessions(): Promise<void> {
  await attempt(async () => {
    sessions.value = await api.listSessions();
  });
}
