/** Markdown as elements of the page. It never becomes HTML text: tags in an answer are shown as they are. */

import { type ComponentChildren, Fragment, type VNode } from "preact";
import { useRef } from "preact/hooks";
import { lexer, type Token as Part, type Tokens } from "marked";

import type { Token } from "../state/turn";
import { Marker, piecesOf } from "./pieces";

const SAFE_LINK = /^(https?:|mailto:)/i;

interface Block {
  raw: string;
  end: number;
  tokens: Token[];
  element: VNode;
}

/** A text that grows. Its blocks stay as they are once others follow. */
export function Markdown({ text, tokens }: { text: string; tokens: Token[] }) {
  const known = useRef<Block[]>([]);
  const marker = new Marker(text, piecesOf(tokens));
  const parts = lexer(text);
  known.current = parts.map((part, index) => {
    const end = marker.enter(part.raw);
    const before = known.current[index];
    const isSame = before?.raw === part.raw && before.end === end && before.tokens === tokens;
    const element = isSame && index < parts.length - 1 ? before.element : <Fragment key={index}>{elementOf(part, marker)}</Fragment>;
    marker.leave(end);
    return { raw: part.raw, end, tokens, element };
  });
  return <>{known.current.map((block) => block.element)}</>;
}

function blocks(parts: Part[] | undefined, marker: Marker): ComponentChildren[] {
  return (parts ?? []).map((part, index) => {
    const end = marker.enter(part.raw);
    const element = <Fragment key={index}>{elementOf(part, marker)}</Fragment>;
    marker.leave(end);
    return element;
  });
}

function elementOf(part: Part, marker: Marker): ComponentChildren {
  switch (part.type) {
    case "space":
    case "def":
      return null;
    case "paragraph":
      return <p>{blocks(part.tokens, marker)}</p>;
    case "heading":
      return <p class={`heading heading-${(part as Tokens.Heading).depth}`}>{blocks(part.tokens, marker)}</p>;
    case "code":
      return (
        <pre tabIndex={0}>
          <code>{marker.mark((part as Tokens.Code).text)}</code>
        </pre>
      );
    case "blockquote":
      return <blockquote>{blocks(part.tokens, marker)}</blockquote>;
    case "list":
      return list(part as Tokens.List, marker);
    case "table":
      return table(part as Tokens.Table, marker);
    case "hr":
      return <hr />;
    case "strong":
      return <strong>{blocks(part.tokens, marker)}</strong>;
    case "em":
      return <em>{blocks(part.tokens, marker)}</em>;
    case "del":
      return <del>{blocks(part.tokens, marker)}</del>;
    case "codespan":
      return <code>{marker.mark((part as Tokens.Codespan).text)}</code>;
    case "br":
      return <br />;
    case "link":
    case "image":
      return link(part as Tokens.Link, marker);
    default:
      return "tokens" in part && part.tokens ? blocks(part.tokens, marker) : marker.mark(leafText(part));
  }
}

function leafText(part: Part): string {
  return part.type === "html" || !("text" in part) ? part.raw : String(part.text);
}

function list(part: Tokens.List, marker: Marker): ComponentChildren {
  const items = part.items.map((item, index) => {
    const end = marker.enter(item.raw);
    const element = <li key={index}>{blocks(item.tokens, marker)}</li>;
    marker.leave(end);
    return element;
  });
  return part.ordered ? <ol start={Number(part.start) || 1}>{items}</ol> : <ul>{items}</ul>;
}

function table(part: Tokens.Table, marker: Marker): ComponentChildren {
  const cells = (row: Tokens.TableCell[], Cell: "th" | "td") =>
    row.map((cell, index) => <Cell key={index}>{blocks(cell.tokens, marker)}</Cell>);
  return (
    <div class="table" tabIndex={0}>
      <table>
        <thead>
          <tr>{cells(part.header, "th")}</tr>
        </thead>
        <tbody>
          {part.rows.map((row, index) => (
            <tr key={index}>{cells(row, "td")}</tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** Images are links too: the page loads nothing from elsewhere. */
function link(part: Tokens.Link, marker: Marker): ComponentChildren {
  const shown = part.tokens ? blocks(part.tokens, marker) : marker.mark(part.text);
  if (!SAFE_LINK.test(part.href)) return shown;
  return (
    <a href={part.href} target="_blank" rel="noopener noreferrer">
      {shown}
    </a>
  );
}
