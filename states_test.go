package holdpoint_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
)

// machine is one transition table with its states spelled out here, independently of the constants.
type machine struct {
	name     string
	moves    []holdpoint.Transition[string]
	states   []string
	start    []string
	terminal []string
}

func plain[S ~string](table []holdpoint.Transition[S]) []holdpoint.Transition[string] {
	out := make([]holdpoint.Transition[string], len(table))
	for i, t := range table {
		out[i] = holdpoint.Transition[string]{From: string(t.From), To: string(t.To), Trigger: t.Trigger, Who: t.Who, Guard: t.Guard}
	}
	return out
}

func machines() []machine {
	return []machine{
		{
			name: "run", moves: plain(holdpoint.RunTransitions),
			states:   []string{"processing", "awaiting_human", "approved", "completed", "failed_retryable", "failed_terminal"},
			start:    []string{"processing"},
			terminal: []string{"completed", "failed_terminal"},
		},
		{
			name: "step", moves: plain(holdpoint.StepTransitions),
			states:   []string{"pending", "running", "completed", "failed", "uncertain"},
			start:    []string{"running"},
			terminal: []string{"completed"},
		},
		{
			name: "approval", moves: plain(holdpoint.ApprovalTransitions),
			states:   []string{"pending", "approved", "rejected", "sent_back", "expired", "withdrawn", "invalidated"},
			start:    []string{"pending"},
			terminal: []string{"rejected", "sent_back", "expired", "withdrawn", "invalidated"},
		},
		{
			name: "effect", moves: plain(holdpoint.EffectTransitions),
			states:   []string{"pending", "sending", "completed", "unknown", "failed"},
			start:    []string{"pending"},
			terminal: []string{"completed", "failed"},
		},
	}
}

func TestTransitionTablesAreSound(t *testing.T) {
	actors := []string{"claim", "owner", "decision", "dispatcher", "sweeper", "operator"}
	for _, m := range machines() {
		t.Run(m.name, func(t *testing.T) {
			var starts, exits []string
			seen := map[string]bool{}
			for _, move := range m.moves {
				id := fmt.Sprintf("%s -%s-> %s", move.From, move.Trigger, move.To)
				require.Contains(t, m.states, move.To, id)
				require.NotEmpty(t, move.Trigger, id)
				require.Contains(t, actors, move.Who, id)
				if move.From == "" {
					starts = append(starts, move.To)
				} else {
					require.Contains(t, m.states, move.From, id)
					exits = append(exits, move.From)
				}
				row := fmt.Sprintf("%s by %s where %q", id, move.Who, move.Guard)
				require.False(t, seen[row], "twice: %s", row)
				seen[row] = true
			}
			require.Equal(t, m.start, slices.Compact(slices.Sorted(slices.Values(starts))))
			for _, s := range m.states {
				require.Equal(t, slices.Contains(m.terminal, s), !slices.Contains(exits, s), "%s: terminal means no exits", s)
			}
		})
	}
}

func TestEveryStateIsReachable(t *testing.T) {
	for _, m := range machines() {
		t.Run(m.name, func(t *testing.T) {
			reached := map[string]bool{"": true}
			for grown := true; grown; {
				grown = false
				for _, move := range m.moves {
					if reached[move.From] && !reached[move.To] {
						reached[move.To], grown = true, true
					}
				}
			}
			for _, s := range m.states {
				require.True(t, reached[s], "%s is not reachable", s)
			}
		})
	}
}

func TestEveryStateCanEnd(t *testing.T) {
	for _, m := range machines() {
		t.Run(m.name, func(t *testing.T) {
			ends := map[string]bool{}
			for _, s := range m.terminal {
				ends[s] = true
			}
			for grown := true; grown; {
				grown = false
				for _, move := range m.moves {
					if ends[move.To] && move.From != "" && !ends[move.From] {
						ends[move.From], grown = true, true
					}
				}
			}
			for _, s := range m.states {
				require.True(t, ends[s], "%s never ends", s)
			}
		})
	}
}

func TestTriggersAreUnambiguous(t *testing.T) {
	for _, m := range machines() {
		t.Run(m.name, func(t *testing.T) {
			for i, a := range m.moves {
				for _, b := range m.moves[i+1:] {
					if a.From == b.From && a.Trigger == b.Trigger && a.To != b.To {
						require.NotEqual(t, a.Guard, b.Guard, "%s -%s-> %s or %s", a.From, a.Trigger, a.To, b.To)
						require.NotEmpty(t, a.Guard, "%s -%s-> %s", a.From, a.Trigger, a.To)
						require.NotEmpty(t, b.Guard, "%s -%s-> %s", b.From, b.Trigger, b.To)
					}
				}
			}
		})
	}
}

// The moves that the invariants single out, stated without the table.
func TestTransitionTablesKeepTheInvariants(t *testing.T) {
	for _, e := range holdpoint.EffectTransitions {
		if e.To == holdpoint.EffectSending {
			require.Equal(t, holdpoint.EffectPending, e.From, "I2: only a pending effect is leased")
			require.Equal(t, "dispatcher", e.Who, "I1: only the dispatcher sends")
		}
		if e.From == holdpoint.EffectUnknown && e.To == holdpoint.EffectFailed {
			require.Equal(t, "operator", e.Who, "I3: only a person gives an unknown effect up")
		}
	}
	for _, a := range holdpoint.ApprovalTransitions {
		if a.Trigger == "expire" {
			require.Equal(t, holdpoint.ApprovalExpired, a.To, "an expiry never approves")
		}
		if a.To == holdpoint.ApprovalApproved {
			require.Equal(t, "decision", a.Who, "only a decision approves")
		}
	}
	for _, r := range holdpoint.RunTransitions {
		if r.From == holdpoint.RunAwaitingHuman && r.To == holdpoint.RunApproved {
			require.Equal(t, "decision", r.Who, "what waits for a person leaves by a decision")
		}
	}
}

func TestTerminalAndOpen(t *testing.T) {
	for _, s := range []holdpoint.RunState{"processing", "awaiting_human", "approved", "failed_retryable"} {
		require.False(t, s.Terminal(), s)
	}
	require.True(t, holdpoint.RunCompleted.Terminal())
	require.True(t, holdpoint.RunFailedTerminal.Terminal())
	for s, open := range map[holdpoint.EffectState]bool{"pending": true, "sending": true, "unknown": true, "completed": false, "failed": false, "": false} {
		require.Equal(t, open, s.Open(), s)
	}
}

func ExampleAllowed() {
	fmt.Println(holdpoint.Allowed(holdpoint.RunTransitions, holdpoint.RunAwaitingHuman, holdpoint.RunApproved, "approve"))
	fmt.Println(holdpoint.Allowed(holdpoint.RunTransitions, holdpoint.RunCompleted, holdpoint.RunProcessing, "recover"))
	// Output:
	// true
	// false
}
