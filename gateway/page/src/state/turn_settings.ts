/** The settings that this tab sent with each turn: a comparison repeats a turn with the same ones. */

import type { GenerationSettings } from "../api/contract";

const KEY = "slipstream.turns";
const MOST = 200;

export function settingsOf(sessionId: string, turn: number): GenerationSettings | null {
  return kept()[`${sessionId}/${turn}`] ?? null;
}

export function keepSettingsOf(sessionId: string, turn: number, settings: GenerationSettings): void {
  const entries = Object.entries({ ...kept(), [`${sessionId}/${turn}`]: settings }).slice(-MOST);
  sessionStorage.setItem(KEY, JSON.stringify(Object.fromEntries(entries)));
}

function kept(): Record<string, GenerationSettings> {
  try {
    return JSON.parse(sessionStorage.getItem(KEY) ?? "{}") as Record<string, GenerationSettings>;
  } catch {
    return {};
  }
}
