/** Messages of conversations, with the names of their authors. */

import type { MessageInitShape } from "@bufbuild/protobuf";
import { type Message, type MessageSchema, Role } from "./contract/slipstream/v1/session_pb.js";

type MessageInit = Exclude<MessageInitShape<typeof MessageSchema>, Message>;

/** A message of a conversation, such as `{ role: "user", content: "What is len?" }`. */
export type ConversationMessage = { role: Lowercase<Exclude<keyof typeof Role, "UNSPECIFIED">> } & Omit<
  MessageInit,
  "$typeName" | "role"
>;

/** Return the contract's messages. */
export function messagesOf(messages: readonly ConversationMessage[]): MessageInit[] {
  return messages.map(({ role, ...rest }) => ({ ...rest, role: Role[role.toUpperCase() as keyof typeof Role] }));
}
