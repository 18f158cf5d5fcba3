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
	begun    store.BegunAttempt
}

// reach takes a new row into a state by verbs.
type reach func(f *fixture) *walked

// event is one verb that may cause some triggers of a table, "state:trigger" for one that it causes from this state only. It
// arranges what guards them, a lapse of time above all.
type event struct {
	name     string
	triggers []string
	fire     func(f *fixture, w *walked) error
	twice    bool // it may make two moves at once, each of the table
}

// allowed gives the states in which an event may leave a row.
func allowed[S ~string](table []holdpoint.Transition[S], e event, from S, moves int) (to []S) {
	for _, row := range table {
		if row.From == from && (slices.Contains(e.triggers, row.Trigger) || slices.Contains(e.triggers, string(from)+":"+row.Trigger)) {
			to = append(to, row.To)
			if moves > 1 {
				to = append(to, allowed(table, e, row.To, moves-1)...)
			}
		}
	}
	return to
}

// walk fires every event at a row in every state, however it came there. A pair that the table has must end where it says,
// or stay for a guard, but not for every way into the state; any other must be refused, or answered with what stands, and
// leave the row as it was. Every transition must have been seen, and every trigger must have a verb unless it is in noVerb.
func walk[S ~string](t *testing.T, open func(testing.TB, func() time.Time) store.Store, table []holdpoint.Transition[S], states map[S][]reach, events []event,
	read func(f *fixture, w *walked) (S, int64), noVerb ...string) {
	caused := slices.Clone(noVerb)
	for _, e := range events {
		for _, trigger := range e.triggers {
			caused = append(caused, trigger[strings.Index(trigger, ":")+1:])
		}
	}
	all := newFixture(t, open)
	all.switchOn()
	seen := map[[2]S]bool{}
	for _, row := range table {
		require.Contains(t, caused, row.Trigger, "no event of the walk causes it")
		for _, s := range []S{row.From, row.To} {
			if s != "" && !slices.Contains(noVerb, row.Trigger) {
				require.NotEmpty(t, states[s], "no verbs of the walk lead to %s", s)
			}
		}
	}
	for state, ways := range states {
		for _, e := range events {
			t.Run(string(state)+"/"+e.name, func(t *testing.T) {
				moves := 1
				if e.twice {
					moves = 2
				}
				may := allowed(table, e, state, moves)
				moved := false
				for _, way := range ways {
					f := all.on(t)
					w := way(f)
					from, version := read(f, w)
					require.Equal(t, state, from)
					err := e.fire(f, w)
					to, after := read(f, w)
					if after == version {
						require.Equal(t, from, to)
						var known *holdpoint.Error
						if err != nil && (!errors.As(err, &known) || known.Code == holdpoint.CodeInternal || known.Code == holdpoint.CodeUnavailable) {
							require.NoError(t, err, "a refusal says what to do")
						}
						continue
					}
					require.NoError(t, err)
					require.Contains(t, may, to, "the table has no such move")
					moved, seen[[2]S{from, to}] = true, true
				}
				require.Equal(t, len(may) > 0, moved, "the table has such a move, and nothing moved")
			})
		}
	}
	for _, row := range table {
		if row.From != "" && !slices.Contains(noVerb, row.Trigger) {
			require.True(t, seen[[2]S{row.From, row.To}], "%s to %s by %s was never seen", row.From, row.To, row.Trigger)
		}
	}
}

// Walks takes a row of each table of transitions through every pair of state and event. open is that of Run.
func Walks(t *testing.T, open func(testing.TB, func() time.Time) store.Store) {
	t.Run("run", func(t *testing.T) {
		walk(t, open, holdpoint.RunTransitions, runStates, runEvents, readRun, "edit", "release", "claim")
	})
	t.Run("approval", func(t *testing.T) {
		walk(t, open, holdpoint.ApprovalTransitions, approvalStates, approvalEvents(), readApproval, "edit", "create")
	})
	t.Run("effect", func(t *testing.T) {
		walk(t, open, holdpoint.EffectTransitions, effectStates, effectEvents, readEffect, "release")
	})
	t.Run("step", func(t *testing.T) { walk(t, open, holdpoint.StepTransitions, stepStates, stepEvents, readStep) })
}
