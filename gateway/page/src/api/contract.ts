/** The messages of slipstream.v1 that the page uses, in protobuf's JSON: numbers of 64 bits are texts, zeros are left out. */

export interface Session {
  id: string;
  createTime: string;
  lastActiveTime: string;
  expireTime: string;
  turnCount?: number;
  tokenCount?: number;
  messageCount?: number;
  runningTurn?: number;
  metadata?: Record<string, string>;
}

export interface Message {
  role: string;
  content?: string;
  parts?: { text?: string }[];
}

export interface Model {
  name: string;
  contextLength: number;
  device: string;
  samplingDefaults?: { temperature?: number; topP?: number };
  /** Share of the texts that the operator collects to train drafts. */
  collectShare?: number;
}

export interface ServerInfo {
  version: string;
  target: Model;
  draft?: Model;
  maxDraftLength?: number;
  defaultMaxTokenCount?: number;
}

export interface Speculation {
  off?: object;
  fixed?: { length: number };
  adaptive?: object;
}

export interface GenerationSettings {
  sampling?: { temperature?: number; topP?: number; seed?: string };
  maxTokenCount?: number;
  speculation?: Speculation;
  logprobs?: { topCount: number; tokenBytes: boolean };
  tokenOrigins?: boolean;
  doNotCollect?: boolean;
}

export interface TokenLogprob {
  tokenId?: number;
  logprob?: number | string;
  tokenBytes?: string;
}

export interface TokenLogprobs extends TokenLogprob {
  top?: TokenLogprob[];
}

export interface TurnDelta {
  text?: string;
  tokenIds?: number[];
  tokenOffset?: number;
  logprobs?: TokenLogprobs[];
  tokenOrigins?: string[];
  tokenTextByteCounts?: number[];
}

export interface SpeculationStatistics {
  roundCount?: number;
  draftCount?: number;
  draftTokenCount?: number;
  acceptedTokenCount?: number;
  acceptedPerPositionCounts?: number[];
  draftedPerPositionCounts?: number[];
}

export interface TurnEnd {
  usage?: { promptTokenCount?: number; cachedTokenCount?: number; generatedTokenCount?: number };
  speculation?: SpeculationStatistics;
  timing?: { total?: string };
  text?: string;
}

export interface TurnEvent {
  turn: number;
  started?: { sessionId: string; requestId?: string; seed?: string; promptTokenCount?: number };
  delta?: TurnDelta;
  finished?: TurnEnd & { finishReason: string };
  failed?: TurnEnd & { error?: { message?: string } };
}

export interface ExportedTurn {
  turn: number;
  content?: string;
  /** What the turn answered, if it was no single message of the user. */
  messages?: Message[];
  text?: string;
  seed?: string;
  tokenIds?: number[];
  finishReason?: string;
  error?: { message?: string };
}

export interface Exchange {
  kind: "KIND_PROPOSE" | "KIND_VERIFY";
  start?: string;
  total?: string;
  forward?: string;
}

export interface Round {
  number: number;
  start?: string;
  total?: string;
  outcome?: string;
  draftTokenCount?: number;
  acceptedTokenCount?: number;
  committedTokenCount?: number;
  exchanges?: Exchange[];
}

export interface TurnTrace {
  turn: number;
  total?: string;
  roundCount?: number;
  rounds?: Round[];
}

/** Seconds of a protobuf Duration: "1.5s". */
export function seconds(duration: string | undefined): number {
  return duration === undefined ? 0 : Number.parseFloat(duration);
}
