/** Slipstream's client for Node. */
export type { CallOptions } from "./attempts.js";
export type { Chat, ChatOptions, SendOptions } from "./chat.js";
export { Client, type GenerateOptions, type Prompt } from "./client.js";
export type { ClientOptions, TlsOptions } from "./connection.js";
export { OrchestratorService } from "./contract/slipstream/v1/orchestrator_pb.js";
export { type FieldViolation, type Reason, SlipstreamError } from "./errors.js";
export type { ConversationMessage } from "./messages.js";
export type { Reply } from "./reply.js";
export type { Delta, Result } from "./turn.js";
