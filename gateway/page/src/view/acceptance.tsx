import type { SpeculationStatistics } from "../api/contract";
import { percent } from "./numbers";

const MOST_POSITIONS = 16;

/** The share of hints that the target accepted, by their place in the proposal. */
export function Acceptance({ statistics }: { statistics: SpeculationStatistics }) {
  const drafted = (statistics.draftedPerPositionCounts ?? []).slice(0, MOST_POSITIONS);
  const accepted = statistics.acceptedPerPositionCounts ?? [];
  if (drafted.length === 0) return null;
  const shares = drafted.map((count, position) => (accepted[position] ?? 0) / Math.max(count, 1));
  const total = (statistics.acceptedTokenCount ?? 0) / Math.max(statistics.draftTokenCount ?? 0, 1);
  return (
    <section aria-label="Acceptance by position">
      <h2>{percent(total)} of the hints accepted</h2>
      <div class="bars" role="img" aria-label={shares.map((share, index) => `position ${index + 1}: ${percent(share)}`).join(", ")}>
        {shares.map((share, index) => (
          <span key={index} class="bar" title={`position ${index + 1}: ${accepted[index] ?? 0} of ${drafted[index]}`}>
            <i style={{ height: `${Math.max(share * 100, 2)}%` }} />
            <small>{index + 1}</small>
          </span>
        ))}
      </div>
      <p class="source">by the hint’s place in its proposal</p>
    </section>
  );
}
