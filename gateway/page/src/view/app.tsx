import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";

import { isRunning, openNew, sessionId, stop, turns } from "../state/chat";
import { conversationWith, server } from "../state/server";
import { Composer } from "./composer";
import { ConversationView } from "./conversation";
import { Icon } from "./icons";
import { Instruments } from "./instruments";
import { SettingsDialog } from "./settings";
import { SideBar } from "./side_bar";
import { TokenDialog } from "./token_dialog";
import { Welcome } from "./welcome";

export function App() {
  const listIsOpen = useSignal(false);
  const settingsAreOpen = useSignal(false);
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
      if (listIsOpen.value) listIsOpen.value = false;
      else if (isRunning.value) void stop();
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
  const title = conversationWith(sessionId.value)?.title;
  useEffect(() => {
    document.title = title === undefined ? "Slipstream" : `${title} · Slipstream`;
  }, [title]);
  return (
    <div class={`frame ${listIsOpen.value ? "list-open" : ""}`}>
      <a class="skip" href="#message" onClick={skipToMessage}>
        Go to the message field
      </a>
      <SideBar onChosen={() => (listIsOpen.value = false)} onSettings={() => (settingsAreOpen.value = true)} />
      <button class="veil" aria-hidden="true" tabIndex={-1} onClick={() => (listIsOpen.value = false)} />
      <main class="main">
        <header class="top">
          <h1 class="hidden">Slipstream</h1>
          <button class="quiet only-narrow" aria-label="Conversations" aria-expanded={listIsOpen.value} onClick={() => (listIsOpen.value = !listIsOpen.value)}>
            <Icon name="menu" />
          </button>
          <ModelName />
          <button class="quiet only-narrow" aria-label="New chat" onClick={startNew}>
            <Icon name="plus" />
          </button>
        </header>
        {turns.value.length === 0 ? <Welcome /> : <ConversationView />}
        <Composer />
      </main>
      {turns.value.length > 0 && (
        <aside class="aside" tabIndex={0} aria-label="How the last answer came">
          <Instruments />
        </aside>
      )}
      <SettingsDialog isOpen={settingsAreOpen} />
      <TokenDialog />
    </div>
  );
}

function skipToMessage(event: Event): void {
  event.preventDefault();
  document.getElementById("message")?.focus();
}

export function startNew(): void {
  openNew();
  history.pushState(null, "", "#");
  document.getElementById("message")?.focus();
}

function ModelName() {
  const info = server.value;
  if (info === null) return <span class="model" />;
  return (
    <span class="model">
      <strong>{info.target.name}</strong>
      <span class="with">{info.draft ? `with hints from ${info.draft.name}` : "without a draft model"}</span>
    </span>
  );
}
