/** Numbers and times as people read them. */

export function rate(tokensPerSecond: number): string {
  return tokensPerSecond >= 100 ? String(Math.round(tokensPerSecond)) : tokensPerSecond.toFixed(1);
}

export function factor(ratio: number): string {
  return `${ratio.toFixed(1)}×`;
}

export function percent(share: number): string {
  if (share > 0 && share < 0.0005) return "< 0.1 %";
  return `${(share * 100).toFixed(share < 0.0995 || (share > 0.995 && share < 0.9995) ? 1 : 0)} %`;
}

export function milliseconds(seconds: number): string {
  return seconds >= 1 ? `${seconds.toFixed(1)} s` : `${(seconds * 1000).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
}

export function ago(time: string): string {
  const minutes = Math.floor((Date.now() - Date.parse(time)) / 60_000);
  if (minutes < 1) return "just now";
  if (minutes < 60) return `${minutes} min ago`;
  return new Date(time).toLocaleString("en", { weekday: "short", hour: "2-digit", minute: "2-digit", hour12: false });
}
