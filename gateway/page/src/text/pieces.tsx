/** Pieces of an answer's text that are tokens, and text with its tokens marked. */

import type { ComponentChildren } from "preact";

import type { Token } from "../state/turn";

export interface Piece {
  start: number;
  end: number;
  index: number;
  token: Token;
}

/** Return the tokens that have text, with their places in the whole text. */
export function piecesOf(tokens: Token[]): Piece[] {
  const pieces: Piece[] = [];
  let start = 0;
  tokens.forEach((token, index) => {
    const end = start + token.text.length;
    if (end > start) pieces.push({ start, end, index, token });
    start = end;
  });
  return pieces;
}

/** Marks the tokens of texts that come one after the other in a source. */
export class Marker {
  private cursor = 0;
  private next = 0;

  constructor(
    private readonly source: string,
    private readonly pieces: Piece[],
  ) {}

  /** Go to where a part of the source begins, and return where it ends. */
  enter(raw: string): number {
    const start = this.source.indexOf(raw, this.cursor);
    if (start < 0) return this.cursor;
    this.cursor = start;
    return start + raw.length;
  }

  /** Go on after a part. */
  leave(end: number): void {
    this.cursor = Math.max(this.cursor, end);
  }

  /** Return a text with its tokens marked. A text that is not in the source stays unmarked. */
  mark(text: string): ComponentChildren {
    const start = this.source.indexOf(text, this.cursor);
    if (text === "" || start < 0) return text;
    const end = start + text.length;
    this.cursor = end;
    const marked: ComponentChildren[] = [];
    for (let at = start; at < end; ) {
      while (this.next < this.pieces.length && this.pieces[this.next]!.end <= at) this.next++;
      const piece = this.pieces[this.next];
      if (piece === undefined || piece.start >= end) {
        marked.push(this.source.slice(at, end));
        break;
      }
      const until = Math.min(piece.end, end);
      marked.push(<TokenSpan key={piece.index} piece={piece} text={this.source.slice(at, until)} />);
      at = until;
    }
    return marked;
  }
}

function TokenSpan({ piece, text }: { piece: Piece; text: string }) {
  return (
    <span class={`token ${piece.token.origin}`} data-token={piece.index}>
      {text}
    </span>
  );
}
