import { type Signal, useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";

import { accessToken, keepAccessToken } from "../api/http";
import { followAddress } from "../state/chat";
import { refresh, server } from "../state/server";
import { DEFAULTS, keepSettings, type Settings, settings } from "../state/settings";

/** Settings, which are kept as they change. */
export function SettingsDialog({ isOpen }: { isOpen: Signal<boolean> }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const resets = useSignal(0);
  const reset = () => {
    keepSettings(DEFAULTS);
    resets.value += 1;
  };
  useEffect(() => {
    if (isOpen.value) dialog.current?.showModal();
    else dialog.current?.close();
  }, [isOpen.value]);
  return (
    <dialog ref={dialog} class="dialog settings" aria-labelledby="settings-title" onClose={() => (isOpen.value = false)}>
      <form method="dialog">
        <h2 id="settings-title">Settings</h2>
        {isOpen.value && <Fields key={resets.value} />}
        <div class="buttons stays">
          <button type="button" class="plain" onClick={reset}>
            Reset
          </button>
          <button class="primary">Done</button>
        </div>
      </form>
    </dialog>
  );
}

function Fields() {
  const info = server.value;
  const defaults = info?.target.samplingDefaults;
  const set = (changed: Partial<Settings>) => keepSettings({ ...settings.value, ...changed });
  const chosen = settings.value;
  return (
    <>
      <fieldset class="numbers">
        <legend>How words are chosen</legend>
        <NumberField label="Temperature" name="temperature" hint="0 always takes the likeliest word" max={5} step={0.1} standard={defaults?.temperature ?? 0} set={set} />
        <NumberField label="Top p" name="topP" hint="keep the likeliest words up to this share" max={1} step={0.05} standard={defaults?.topP ?? 1} set={set} />
        <NumberField label="Most tokens" name="maxTokens" hint="of an answer" min={1} step={1} standard={info?.defaultMaxTokenCount ?? 512} set={set} />
        <label class="field tall">
          <span>Seed</span>
          <input
            inputMode="numeric"
            pattern="[0-9]{1,19}"
            placeholder="random"
            defaultValue={chosen.seed}
            onInput={({ currentTarget: input }) => input.checkValidity() && set({ seed: input.value })}
          />
          <small>the same seed gives the same text</small>
        </label>
      </fieldset>
      <fieldset>
        <legend>How it is sped up</legend>
        <label class="field">
          <span>Speculation</span>
          <select value={chosen.speculation} onChange={(event) => set({ speculation: event.currentTarget.value as Settings["speculation"] })}>
            <option value="default">Server’s default</option>
            <option value="on">On: as many hints as pay</option>
            <option value="fixed">On: a fixed number of hints</option>
            <option value="off">Off</option>
          </select>
          <small>changes the speed, never the text</small>
        </label>
        {chosen.speculation === "fixed" && (
          <NumberField label="Hints a step" name="draftLength" hint="" min={1} max={info?.maxDraftLength ?? 64} step={1} standard={5} set={set} />
        )}
        <label class="check">
          <input type="checkbox" checked={chosen.colours} onChange={(event) => set({ colours: event.currentTarget.checked })} />
          Colour tokens by their origin
        </label>
      </fieldset>
      {(info?.target.collectShare ?? 0) > 0 && (
        <fieldset>
          <legend>Privacy</legend>
          <label class="check">
            <input type="checkbox" checked={chosen.doNotCollect} onChange={(event) => set({ doNotCollect: event.currentTarget.checked })} />
            Keep my messages out of what is collected
          </label>
          <div class="field tall">
            <small>this server collects some texts to train the models that guess ahead; with this, none that you send from now on</small>
          </div>
        </fieldset>
      )}
      <fieldset>
        <legend>New chats</legend>
        <label class="field tall">
          <span>System prompt</span>
          <textarea rows={2} defaultValue={chosen.system} onInput={(event) => set({ system: event.currentTarget.value })} />
          <small>for chats that you begin from now on</small>
        </label>
      </fieldset>
      <fieldset>
        <legend>Access</legend>
        <AccessToken />
      </fieldset>
    </>
  );
}

interface NumberFieldProperties {
  label: string;
  name: "temperature" | "topP" | "maxTokens" | "draftLength";
  hint: string;
  min?: number;
  max?: number;
  step: number;
  standard: number | string;
  set: (changed: Partial<Settings>) => void;
}

function NumberField({ label, name, hint, min = 0, max, step, standard, set }: NumberFieldProperties) {
  return (
    <label class="field tall">
      <span>{label}</span>
      <input
        type="number"
        inputMode="decimal"
        min={min}
        max={max}
        step={step}
        placeholder={String(standard)}
        defaultValue={settings.value[name]}
        onInput={({ currentTarget: input }) => input.checkValidity() && set({ [name]: input.value })}
      />
      <small>{hint}</small>
    </label>
  );
}

function AccessToken() {
  return (
    <label class="field">
      <span>Access token</span>
      <input
        type="password"
        autocomplete="off"
        placeholder="none"
        value={accessToken()}
        onChange={(event) => {
          keepAccessToken(event.currentTarget.value.trim());
          void refresh().then(followAddress);
        }}
      />
      <small>this tab forgets it when you close it</small>
    </label>
  );
}
