/** Line icons of 20 pixels. They are decoration: their buttons have names. */

const PATHS = {
  again: "M15.500 6.500A6.500 6.500 0 1 0 16.500 11M15.700 3v3.700H12",
  check: "m4.500 10.500 3.500 3.500 7.500-8",
  close: "m5 5 10 10M15 5 5 15",
  copy: "M7.500 7.500h8v8h-8zM12.500 7.500v-3h-8v8h3",
  left: "m12 5-5 5 5 5",
  menu: "M3.500 6h13M3.500 10h13M3.500 14h13",
  pencil: "m4 16 .700-3.300 8.600-8.600 2.600 2.600-8.600 8.600zM11.500 5.900l2.600 2.600",
  plus: "M10 4.500v11M4.500 10h11",
  race: "M3 7h9M3 13h5M12 4l3.500 3L12 10M8 10l3.500 3L8 16",
  right: "m8 5 5 5-5 5",
  send: "M10 16V4.500M5 9.500l5-5 5 5",
  sliders: "M3.500 6h7M14.500 6h2M3.500 14h2M9.500 14h7M12.500 4v4M7.500 12v4",
  stop: "M6.500 6.500h7v7h-7z",
  trash: "M4.500 6h11M8 6V4h4v2M6 6l.600 10h6.800L14 6M8.500 9v4.500M11.500 9v4.500",
} as const;

export function Icon({ name }: { name: keyof typeof PATHS }) {
  return (
    <svg class="icon" viewBox="0 0 20 20" width="20" height="20" aria-hidden="true" focusable="false">
      <path d={PATHS[name]} fill="none" stroke="currentColor" stroke-width="1.500" stroke-linecap="round" stroke-linejoin="round" />
    </svg>
  );
}
