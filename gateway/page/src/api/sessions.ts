/** The session methods of the contract. */

import type {
  ExportedTurn,
  GenerationSettings,
  Message,
  ServerInfo,
  Session,
  TurnEvent,
  TurnTrace,
} from "./contract";
import { call, stream } from "./http";

export function serverInfo(): Promise<ServerInfo> {
  return call("GET", "/server");
}

/** Return the newest sessions, at most `most`. */
export async function listSessions(most = 500): Promise<Session[]> {
  const sessions: Session[] = [];
  let page = "";
  do {
    const path = `/sessions?page_size=100&page_token=${encodeURIComponent(page)}`;
    const answer = await call<{ sessions?: Session[]; nextPageToken?: string }>("GET", path);
    sessions.push(...(answer.sessions ?? []));
    page = answer.nextPageToken ?? "";
  } while (page !== "" && sessions.length < most);
  return sessions;
}

export async function createSession(system: string, metadata: Record<string, string>): Promise<Session> {
  const body = system === "" ? { metadata } : { system, metadata };
  return (await call<{ session: Session }>("POST", "/sessions", body)).session;
}

export function getSession(id: string): Promise<{ session: Session; messages?: Message[] }> {
  return call("GET", `/sessions/${id}`);
}

export async function exportedTurns(id: string): Promise<{ system: string; turns: ExportedTurn[] }> {
  const answer = await call<{ system?: string; turns?: ExportedTurn[] }>("GET", `/sessions/${id}/export`);
  return { system: answer.system ?? "", turns: answer.turns ?? [] };
}

export function deleteSession(id: string): Promise<object> {
  return call("DELETE", `/sessions/${id}`);
}

export async function forkSession(id: string, afterTurn: number): Promise<Session> {
  return (await call<{ session: Session }>("POST", `/sessions/${id}/fork`, { afterTurn })).session;
}

export function renameSession(session: Session, title: string): Promise<object> {
  return call("PATCH", `/sessions/${session.id}`, { metadata: { ...session.metadata, title } });
}

/** Return the settings that a turn was asked with. */
export async function turnSettings(id: string, turn: number): Promise<GenerationSettings> {
  return (await call<{ settings?: GenerationSettings }>("GET", `/sessions/${id}/turns/${turn}`)).settings ?? {};
}

export function cancelTurn(id: string, turn: number): Promise<object> {
  return call("POST", `/sessions/${id}/turns/${turn}/cancel`);
}

export async function lastTrace(id: string): Promise<TurnTrace | undefined> {
  return (await call<{ turns?: TurnTrace[] }>("GET", `/sessions/${id}/traces?turn_count=1`)).turns?.at(-1);
}

export interface Sending {
  content?: string;
  messages?: Message[];
  requestId: string;
  settings: GenerationSettings;
  afterTokenCount: number;
}

export function sendMessage(id: string, message: Sending, signal: AbortSignal): AsyncGenerator<{ event: TurnEvent }> {
  return stream("POST", `/sessions/${id}/messages`, message, signal);
}

export function watchTurn(
  id: string,
  turn: number,
  afterTokenCount: number,
  signal: AbortSignal,
): AsyncGenerator<{ event: TurnEvent }> {
  return stream("GET", `/sessions/${id}/turns/${turn}/events?after_token_count=${afterTokenCount}`, undefined, signal);
}
