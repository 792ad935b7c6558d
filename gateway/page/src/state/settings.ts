/** Settings of turns, which this browser keeps. An empty text is the server's or the model's default. */

import { signal } from "@preact/signals";

import type { GenerationSettings, Speculation } from "../api/contract";

export interface Settings {
  temperature: string;
  topP: string;
  maxTokens: string;
  seed: string;
  speculation: "default" | "off" | "on" | "fixed";
  draftLength: string;
  system: string;
  colours: boolean;
  /** Messages are kept out of what the operator collects to train drafts. */
  doNotCollect: boolean;
}

const KEY = "slipstream.settings";
const ALTERNATIVES = 5;

export const DEFAULTS: Settings = {
  temperature: "",
  topP: "",
  maxTokens: "",
  seed: "",
  speculation: "default",
  draftLength: "5",
  system: "",
  colours: true,
  doNotCollect: false,
};

export const settings = signal<Settings>(kept());

function kept(): Settings {
  try {
    return { ...DEFAULTS, ...(JSON.parse(localStorage.getItem(KEY) ?? "{}") as Partial<Settings>) };
  } catch {
    return DEFAULTS;
  }
}

export function keepSettings(chosen: Settings): void {
  settings.value = chosen;
  localStorage.setItem(KEY, JSON.stringify(chosen));
}

/** Return the contract's settings of a turn. The seed is a text: it may be larger than JavaScript's numbers. */
export function turnSettings(chosen: Settings, seed: string = chosen.seed): GenerationSettings {
  const speculation = speculationOf(chosen);
  return {
    sampling: {
      ...(chosen.temperature !== "" && { temperature: Number(chosen.temperature) }),
      ...(chosen.topP !== "" && { topP: Number(chosen.topP) }),
      ...(seed !== "" && { seed }),
    },
    ...(chosen.maxTokens !== "" && { maxTokenCount: Number(chosen.maxTokens) }),
    ...(speculation && { speculation }),
    logprobs: { topCount: ALTERNATIVES, tokenBytes: true },
    tokenOrigins: true,
    ...privacyOf(chosen),
  };
}

/** Return the settings that keep a text private. They hold also while the server collects nothing: it may begin to. */
export function privacyOf(chosen: Settings): GenerationSettings {
  return chosen.doNotCollect ? { doNotCollect: true } : {};
}

function speculationOf(chosen: Settings): Speculation | undefined {
  if (chosen.speculation === "off") return { off: {} };
  if (chosen.speculation === "on") return { adaptive: {} };
  if (chosen.speculation === "fixed") return { fixed: { length: Number(chosen.draftLength) } };
  return undefined;
}

/** Return a seed that no earlier turn is likely to have. It has at most 53 bits. */
export function freshSeed(): string {
  const [high, low] = crypto.getRandomValues(new Uint32Array(2));
  return String((high! % 2 ** 21) * 2 ** 32 + low!);
}

/** Return a random name for a request or a conversation. */
export function freshName(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
