package storetest

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

// walked is one row on its way through a table, with what its verbs need.
type walked struct {
	key      string
	fence    store.Fence
	approval holdpoint.Approval
	effect   string
	leased   store.LeasedEffect // as leased last
	begun    store.BegunAttempt // as begun last
}

// reach takes a new row into a state by verbs.
type reach func(f *fixture) *walked

// event is one verb that may cause some triggers of a table. It arranges what guards them, a lapse of time above all.
type event struct {
	name     string
	triggers []string // "retry"; "sending:retry" from this state only; "sending:retry+end" two moves in one call
	fire     func(f *fixture, w *walked) error
	tells    []string // evidence that it may leave although the row stays where it is
	leases   bool     // it takes leases, which have a version of their own, and then makes no move
}

// errLost is what an event says whose outcome did not count.
var errLost = holdpoint.Errorf(holdpoint.CodeLeaseLost, "lost")

// table is one table of transitions with all that the walk needs to take rows through it.
type table[S ~string] struct {
	rows   []holdpoint.Transition[S]
	states map[S][]reach
	events []event
	read   func(f *fixture, w *walked) (S, int64)  // state and what grows with every move
	own    func(w *walked, e holdpoint.Event) bool // evidence about the row
	noVerb map[string]string                       // "from/trigger" that no verb causes, with the reason
}

// path is what one call moves: one transition, seldom two.
type path[S ~string] []holdpoint.Transition[S]

// paths gives all ways that an event has from a state.
func (t table[S]) paths(e event, from S) (all []path[S]) {
	for _, trigger := range e.triggers {
		if only, rest, bound := strings.Cut(trigger, ":"); bound {
			if S(only) != from {
				continue
			}
			trigger = rest
		}
		ways := []path[S]{nil}
		for _, one := range strings.Split(trigger, "+") {
			var longer []path[S]
			for _, way := range ways {
				at := from
				if len(way) > 0 {
					at = way[len(way)-1].To
				}
				for _, row := range t.rows {
					if row.From == at && row.Trigger == one {
						longer = append(longer, append(slices.Clone(way), row))
					}
				}
			}
			ways = longer
		}
		all = append(all, ways...)
	}
	return all
}

// walk fires every event at a row in every state, however it came there. A pair that the table has must end where it says,
// by one way, with evidence, or stay for a guard, but not for every way into the state; any other must be refused, or
// answered with what stands, and leave the row and its evidence as they were. Every transition must have been seen by its
// trigger, unless noVerb says why not.
func walk[S ~string](t *testing.T, open func(testing.TB, func() time.Time) store.Store, table table[S]) {
	seen := map[holdpoint.Transition[S]]bool{}
	for _, e := range table.events {
		t.Run(e.name, func(t *testing.T) {
			all := newFixture(t, open) // one for each event, so that it does not meet the rows of all others
			all.switchOn()
			for state, ways := range table.states {
				t.Run(string(state), func(t *testing.T) {
					may := table.paths(e, state)
					moved := false
					for _, way := range ways {
						f := all.on(t)
						if went := step(f, table, e, state, way(f), may); went != nil {
							moved = true
							for _, row := range went {
								seen[row] = true
							}
						}
					}
					require.Equal(t, len(may) > 0, moved, "the table has such a move, and nothing moved")
				})
			}
		})
	}
	for _, row := range table.rows {
		why, none := table.noVerb[string(row.From)+"/"+row.Trigger]
		require.False(t, none && (why == "" || seen[row]), "%s/%s: give the reason why no verb causes it, or none", row.From, row.Trigger)
		require.True(t, none || seen[row], "%s to %s by %s was never seen", row.From, row.To, row.Trigger)
	}
}

// step fires one event at one row and gives the moves that it made, nil for none.
func step[S ~string](f *fixture, table table[S], e event, state S, w *walked, may []path[S]) path[S] {
	from, version := table.read(f, w)
	require.Equal(f.t, state, from)
	before := len(f.eventsOf(w.fence.RunID))
	err := e.fire(f, w)
	to, after := table.read(f, w)
	var told []holdpoint.Event
	for _, ev := range f.eventsOf(w.fence.RunID)[before:] {
		if table.own(w, ev) {
			told = append(told, ev)
		}
	}
	if after == version || e.leases {
		require.Equal(f.t, from, to)
		for _, ev := range told {
			require.Contains(f.t, e.tells, ev.Type, "evidence of what did not happen")
		}
		var known *holdpoint.Error
		if err != nil && (!errors.As(err, &known) || known.Code == holdpoint.CodeInternal || known.Code == holdpoint.CodeUnavailable) {
			require.NoError(f.t, err, "a refusal says what to do")
		}
		return nil
	}
	require.NoError(f.t, err)
	var went []path[S]
	for _, p := range may {
		if p[len(p)-1].To == to {
			went = append(went, p)
		}
	}
	require.Len(f.t, went, 1, "from %s to %s, and the table has not exactly one way for it: %v", from, to, may)
	require.NotEmpty(f.t, told, "a move without evidence")
	for _, ev := range told { // what names a trigger between states of this table names one of the way
		start, _ := ev.Data["from"].(string)
		if trigger, named := ev.Data["trigger"].(string); named && table.states[S(start)] != nil {
			require.True(f.t, slices.ContainsFunc(went[0], func(row holdpoint.Transition[S]) bool {
				return trigger == row.Trigger && start == string(row.From) && ev.Data["to"] == string(row.To)
			}), "%s by %s is not on the way %v", ev.Type, trigger, went[0])
		}
	}
	return went[0]
}

// Walks takes a row of each table of transitions through every pair of state and event. open is that of Run.
func Walks(t *testing.T, open func(testing.TB, func() time.Time) store.Store) {
	t.Run("run", func(t *testing.T) { walk(t, open, runTable) })
	t.Run("approval", func(t *testing.T) { walk(t, open, approvalTable) })
	t.Run("effect", func(t *testing.T) { walk(t, open, effectTable) })
	t.Run("step", func(t *testing.T) { walk(t, open, stepTable) })
}
