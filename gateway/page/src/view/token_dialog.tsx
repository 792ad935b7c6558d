import { useEffect, useRef } from "preact/hooks";

import { accessToken, keepAccessToken } from "../api/http";
import { followAddress } from "../state/chat";
import { needsToken, refresh } from "../state/server";

/** Asks for an access token when the server refuses a request without, or with another, one. */
export function TokenDialog() {
  const dialog = useRef<HTMLDialogElement>(null);
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => {
    if (needsToken.value) dialog.current?.showModal();
    else dialog.current?.close();
  }, [needsToken.value]);
  const submit = (event: Event) => {
    event.preventDefault();
    keepAccessToken(field.current!.value.trim());
    needsToken.value = false;
    void refresh().then(followAddress);
  };
  return (
    <dialog ref={dialog} class="dialog" aria-labelledby="token-title" onClose={() => (needsToken.value = false)}>
      <form onSubmit={submit}>
        <h2 id="token-title">This server asks for a token</h2>
        <p>
          {accessToken() === "" ? "The operator of this server has one for you." : "The server does not know this token."} This tab keeps it, and forgets it
          when you close it.
        </p>
        <label class="field tall">
          <span>Access token</span>
          <input ref={field} type="password" autocomplete="off" required />
        </label>
        <div class="buttons">
          <button class="primary">Continue</button>
        </div>
      </form>
    </dialog>
  );
}
