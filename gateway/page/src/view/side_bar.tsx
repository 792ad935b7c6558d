import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";

import { deleteConversation, openSession, renameConversation, sessionId } from "../state/chat";
import { type Conversation, conversations, conversationWith, server } from "../state/server";
import { startNew } from "./app";
import { Icon } from "./icons";
import { ago } from "./numbers";

export function SideBar({ onChosen, onSettings }: { onChosen: () => void; onSettings: () => void }) {
  const open = conversationWith(sessionId.value);
  return (
    <nav class="side" aria-label="Conversations">
      <div class="brand">
        <img src="/page/icon.svg" alt="" width="28" height="28" />
        <p>Slipstream</p>
      </div>
      <button
        class="new"
        onClick={() => {
          startNew();
          onChosen();
        }}
      >
        <Icon name="plus" /> New chat
      </button>
      <ul class="list">
        {conversations.value.map((each) => (
          <Row key={each.key} conversation={each} isOpen={each.key === open?.key} onChosen={onChosen} />
        ))}
      </ul>
      {conversations.value.length === 0 && <p class="nothing">Your conversations appear here. The server keeps them.</p>}
      <div class="foot">
        <button class="quiet wide" onClick={onSettings}>
          <Icon name="sliders" /> Settings
        </button>
        <span class="version">{server.value ? server.value.version : ""}</span>
      </div>
    </nav>
  );
}

function Row({ conversation, isOpen, onChosen }: { conversation: Conversation; isOpen: boolean; onChosen: () => void }) {
  const isDeleting = useSignal(false);
  const isRenaming = useSignal(false);
  const choose = () => {
    const id = conversation.versions.at(-1)!.id;
    history.pushState(null, "", `#${id}`);
    void openSession(id);
    onChosen();
  };
  if (isRenaming.value) return <Rename conversation={conversation} onEnd={() => (isRenaming.value = false)} />;
  return (
    <li class={`row ${isOpen ? "open" : ""}`}>
      <button class="choose" aria-current={isOpen ? "page" : undefined} onClick={choose}>
        <span class="title">{conversation.title}</span>
        <span class="when">
          {conversation.running ? <span class="live">writing…</span> : ago(conversation.lastActive)}
          {conversation.versions.length > 1 && ` · ${conversation.versions.length} versions`}
        </span>
      </button>
      <span class="tools">
        <button class="quiet small" aria-label={`Rename ${conversation.title}`} onClick={() => (isRenaming.value = true)}>
          <Icon name="pencil" />
        </button>
        <button class="quiet small" aria-label={`Delete ${conversation.title}`} onClick={() => (isDeleting.value = true)}>
          <Icon name="trash" />
        </button>
      </span>
      {isDeleting.value && (
        <Confirm
          title={conversation.title}
          onNo={() => (isDeleting.value = false)}
          onYes={() => void deleteConversation(conversation)}
        />
      )}
    </li>
  );
}

function Rename({ conversation, onEnd }: { conversation: Conversation; onEnd: () => void }) {
  const field = useRef<HTMLInputElement>(null);
  const hasEnded = useRef(false);
  useEffect(() => field.current?.select(), []);
  const end = () => {
    hasEnded.current = true; // the field loses the focus when it goes
    onEnd();
  };
  const keep = () => {
    if (hasEnded.current) return;
    const title = field.current!.value.trim();
    end();
    if (title !== "" && title !== conversation.title) void renameConversation(conversation, title);
  };
  return (
    <li class="row renaming">
      <input
        ref={field}
        aria-label="New title"
        maxLength={200}
        defaultValue={conversation.title}
        onBlur={keep}
        onKeyDown={(event) => {
          if (event.key === "Enter") keep();
          if (event.key === "Escape") end();
          if (event.key === "Enter" || event.key === "Escape") event.stopPropagation();
        }}
      />
    </li>
  );
}

function Confirm({ title, onYes, onNo }: { title: string; onYes: () => void; onNo: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => dialog.current?.showModal(), []);
  return (
    <dialog ref={dialog} class="dialog" aria-labelledby="delete-title" onClose={onNo}>
      <h2 id="delete-title">Delete this conversation?</h2>
      <p>“{title}” is removed from the server. This cannot be undone.</p>
      <div class="buttons">
        <button class="plain" onClick={() => dialog.current?.close()}>
          Keep it
        </button>
        <button class="danger" onClick={onYes}>
          Delete
        </button>
      </div>
    </dialog>
  );
}
