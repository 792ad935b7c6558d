import "./style/base.css";
import "./style/frame.css";
import "./style/conversation.css";
import "./style/instruments.css";
import "./style/dialogs.css";

import { render } from "preact";

import { openNew, openSession, sessionId } from "./state/chat";
import { refresh } from "./state/server";
import { App } from "./view/app";

/** Open the session that the address names. */
function followAddress(): void {
  const id = location.hash.slice(1);
  if (/^[0-9a-f]{16}$/.test(id)) {
    if (id !== sessionId.value) void openSession(id);
  } else openNew();
}

addEventListener("popstate", followAddress);
render(<App />, document.getElementById("page")!);
void refresh().then(followAddress);
