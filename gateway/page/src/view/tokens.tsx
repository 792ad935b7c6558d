import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";

import type { Token } from "../state/turn";
import { percent } from "./numbers";

/** A text whose tokens tell their alternatives: under the pointer, or with the arrow keys. */
export function Tokens({ tokens, children }: { tokens: Token[]; children: ComponentChildren }) {
  const chosen = useSignal<number | null>(null);
  const area = useRef<HTMLDivElement>(null);
  const choose = (target: EventTarget | null) => {
    const element = target instanceof Element ? target.closest<HTMLElement>("[data-token]") : null;
    chosen.value = element === null ? null : Number(element.dataset["token"]);
  };
  const step = (event: KeyboardEvent) => {
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape" && chosen.value !== null) {
      chosen.value = null;
      event.stopPropagation();
    }
    if (by === undefined) return;
    event.preventDefault();
    const shown = shownTokens(area.current!);
    const at = chosen.value === null ? (by > 0 ? -1 : shown.length) : shown.indexOf(chosen.value);
    chosen.value = shown[Math.min(Math.max(at + by, 0), shown.length - 1)] ?? null;
  };
  const token = chosen.value === null ? undefined : tokens[chosen.value];
  return (
    <>
      <div
        class="text"
        ref={area}
        tabIndex={0}
        role="group"
        aria-label="Answer. Arrow keys go through its tokens."
        onPointerOver={(event) => choose(event.target)}
        onPointerLeave={(event) => {
          if (event.pointerType !== "touch") chosen.value = null; // a finger leaves at once
        }}
        onKeyDown={step}
        onBlur={() => (chosen.value = null)}
      >
        {children}
      </div>
      {token && <Card token={token} index={chosen.value!} area={area.current!} />}
    </>
  );
}

function shownTokens(area: HTMLElement): number[] {
  return [...new Set([...area.querySelectorAll<HTMLElement>("[data-token]")].map((each) => Number(each.dataset["token"])))];
}

const ORIGINS: Record<string, string> = {
  DRAFT: "hinted by the draft, accepted",
  NGRAM: "hinted by earlier text, accepted",
  HEADS: "hinted by heads of the target, accepted",
  PREDICTION: "hinted by a prediction, accepted",
  OTHER: "hinted, accepted",
  RECOVERED: "recovered: the hint was wrong",
  BONUS: "the target’s own, after accepted hints",
  PLAIN: "the target’s own, no hint was there",
};

function Card({ token, index, area }: { token: Token; index: number; area: HTMLElement }) {
  const card = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    const spans = area.querySelectorAll<HTMLElement>(`[data-token="${index}"]`);
    for (const span of spans) span.classList.add("chosen");
    const place = spans[0]?.getBoundingClientRect();
    const size = card.current!.getBoundingClientRect();
    if (place !== undefined) {
      const left = Math.max(8, Math.min(place.left, innerWidth - size.width - 8));
      const above = place.top - size.height - 8;
      card.current!.style.left = `${left}px`;
      card.current!.style.top = `${above > 8 ? above : place.bottom + 8}px`;
    }
    return () => {
      for (const span of spans) span.classList.remove("chosen");
    };
  }, [index]);
  return (
    <div class="card" ref={card} role="status">
      <p class="card-head">
        <b class={`token ${token.origin}`}>{visible(token.text)}</b>
        <span>{ORIGINS[token.detail] ?? "origin not known"}</span>
      </p>
      {token.alternatives.length > 0 && (
        <table>
          <caption class="hidden">Likeliest tokens here</caption>
          <tbody>
            {token.alternatives.map((each, row) => (
              <tr key={row} class={each.text === token.text ? "taken" : ""}>
                <th scope="row">{visible(each.text)}</th>
                <td>
                  <i class="share" aria-hidden="true">
                    <i style={{ width: `${Math.exp(each.logprob) * 100}%` }} />
                  </i>
                </td>
                <td class="figure">{percent(Math.exp(each.logprob))}</td>
                <td class="figure faint">{each.logprob > -0.005 ? "0.00" : each.logprob.toFixed(2)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </div>
  );
}

function visible(text: string): string {
  return text === "" ? "∅" : text.replaceAll(" ", "␣").replaceAll("\n", "⏎");
}
