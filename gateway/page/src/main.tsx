import "./style/base.css";
import "./style/frame.css";
import "./style/conversation.css";
import "./style/instruments.css";
import "./style/dialogs.css";

import { render } from "preact";

import { followAddress } from "./state/chat";
import { refresh } from "./state/server";
import { App } from "./view/app";

addEventListener("popstate", followAddress);
render(<App />, document.getElementById("page")!);
void refresh().then(followAddress);
