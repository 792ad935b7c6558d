import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";

import { isRunning, send, sessionId, stop, takesMessage } from "../state/chat";
import { problem } from "../state/server";
import { Icon } from "./icons";

export function Composer() {
  const text = useSignal("");
  const field = useRef<HTMLTextAreaElement>(null);
  /** True from Enter until the message can leave: the page may not have loaded the conversation yet. */
  const isWanted = useSignal(false);
  const submit = () => {
    if (!isRunning.value && text.value.trim() !== "") isWanted.value = true;
  };
  useEffect(() => {
    if (!isWanted.value || !takesMessage.value) return;
    const content = text.value;
    isWanted.value = false;
    text.value = "";
    void send(content).then((begun) => {
      if (!begun) text.value ||= content;
    });
  }, [isWanted.value, takesMessage.value]);
  useEffect(() => {
    if (matchMedia("(pointer: fine)").matches) field.current?.focus();
  }, [sessionId.value]);
  useEffect(() => {
    const area = field.current!;
    area.style.height = "auto";
    area.style.height = `${Math.min(area.scrollHeight, 220)}px`;
  }, [text.value]);
  return (
    <div class="composer">
      {problem.value !== "" && (
        <p class="problem" role="alert">
          {problem.value}
          <button class="quiet small" aria-label="Hide this message" onClick={() => (problem.value = "")}>
            <Icon name="close" />
          </button>
        </p>
      )}
      <form
        class="box"
        onSubmit={(event) => {
          event.preventDefault();
          submit();
        }}
      >
        <textarea
          id="message"
          ref={field}
          rows={1}
          aria-label="Message"
          aria-describedby="keys"
          placeholder="Write a message"
          value={text.value}
          onInput={(event) => {
            text.value = event.currentTarget.value;
            isWanted.value = false; // what is changed has to be sent again
          }}
          onKeyDown={(event) => {
            if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
              event.preventDefault();
              submit();
            }
          }}
        />
        {isRunning.value ? (
          <button type="button" class="round stop" aria-label="Stop" onClick={() => void stop()}>
            <Icon name="stop" />
          </button>
        ) : (
          <button type="submit" class="round" aria-label="Send" disabled={isWanted.value || text.value.trim() === ""}>
            <Icon name="send" />
          </button>
        )}
      </form>
      <p id="keys" class="keys">
        <kbd>Enter</kbd> sends <span aria-hidden="true">·</span> <kbd>Shift</kbd>+<kbd>Enter</kbd> new line{" "}
        <span aria-hidden="true">·</span> <kbd>Esc</kbd> stops
      </p>
    </div>
  );
}
