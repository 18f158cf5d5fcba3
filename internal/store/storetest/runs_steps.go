package storetest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

// testSteps is R1.6: what begin answers, and how a step ends.
func testSteps(t *testing.T, open func(testing.TB, func() time.Time) store.Store) {
	f := newFixture(t, open)
	begin := func(f *fixture, fence store.Fence, b store.StepBegin) (store.StepResult, error) {
		b.Name, b.Who = "s", machine
		return f.BeginStep(f.ctx, fence, b)
	}
	run := func(f *fixture, fence store.Fence, b store.StepBegin) holdpoint.Step {
		f.t.Helper()
		r, err := begin(f, fence, b)
		require.NoError(f.t, err)
		require.Equal(f.t, "run", r.Outcome)
		require.Equal(f.t, holdpoint.StepRunning, r.Step.State)
		require.Equal(f.t, fence.Version, r.Step.LeaseVersion)
		return r.Step
	}
	finish := func(f *fixture, fence store.Fence, hash string, class holdpoint.FailureClass) (holdpoint.Step, error) {
		return f.FinishStep(f.ctx, fence, store.StepFinish{Name: "s", Result: []byte("result " + hash), ResultHash: hash, Class: class, Who: machine})
	}
	takeOver := func(f *fixture, key string) store.Fence {
		f.advance(time.Minute)
		fence, _ := f.claimed(newClaim(f.tenant, key))
		return fence
	}

	t.Run("runs once", func(t *testing.T) {
		f := f.on(t)
		fence := f.work("once")
		step := run(f, fence, store.StepBegin{InputHash: "in"})
		require.Equal(t, 1, step.Begins)
		f.advance(20 * time.Second)
		r, err := begin(f, fence, store.StepBegin{InputHash: "in"})
		require.NoError(t, err)
		require.Equal(t, "in_progress", r.Outcome)
		require.Equal(t, 40*time.Second, r.RetryAfter)

		for range 2 { // the second is a lost answer
			step, err = finish(f, fence, "h", "")
			require.NoError(t, err)
			require.Equal(t, holdpoint.StepCompleted, step.State)
		}
		_, err = finish(f, fence, "other", "")
		requireCode(t, holdpoint.CodeNotAllowedNow, err)
		_, err = finish(f, fence, "", holdpoint.ClassModelTimeout)
		requireCode(t, holdpoint.CodeNotAllowedNow, err)

		holder := fence
		for range 2 {
			r, err = begin(f, holder, store.StepBegin{InputHash: "in"})
			require.NoError(t, err)
			require.Equal(t, "done", r.Outcome)
			require.Equal(t, []byte("result h"), r.Result)
			require.Equal(t, "h", r.Step.ResultHash)
			holder = takeOver(f, "once")
		}
		_, err = begin(f, fence, store.StepBegin{InputHash: "in"})
		requireCode(t, holdpoint.CodeLeaseLost, err)
		require.Equal(t, []string{"run.claimed", "step.begun", "step.finished",
			"run.claimed", "run.stolen", "run.claimed", "run.stolen"}, f.kinds(fence.RunID))
	})
	t.Run("another input under a completed name", func(t *testing.T) {
		f := f.on(t)
		fence := f.work("input")
		run(f, fence, store.StepBegin{InputHash: "in"})
		_, err := finish(f, fence, "h", "")
		require.NoError(t, err)
		for _, hash := range []string{"changed", ""} {
			_, err = begin(f, fence, store.StepBegin{InputHash: hash})
			requireCode(t, holdpoint.CodeNotAllowedNow, err)
		}
	})
	t.Run("a failed step runs again", func(t *testing.T) {
		f := f.on(t)
		fence := f.work("failed")
		run(f, fence, store.StepBegin{InputHash: "in"})
		for range 2 {
			step, err := finish(f, fence, "", holdpoint.ClassModelTimeout)
			require.NoError(t, err)
			require.Equal(t, holdpoint.StepFailed, step.State)
		}
		step := run(f, fence, store.StepBegin{InputHash: "changed"})
		require.Equal(t, 2, step.Begins)
		require.Empty(t, step.FailureClass)
		require.Equal(t, "changed", step.InputHash)
	})
	t.Run("a step lost with its lease runs again", func(t *testing.T) {
		f := f.on(t)
		run(f, f.work("lost"), store.StepBegin{})
		fence := takeOver(f, "lost")
		_, err := finish(f, fence, "h", "")
		requireCode(t, holdpoint.CodeNotAllowedNow, err) // begun by another worker
		require.Equal(t, 2, run(f, fence, store.StepBegin{}).Begins)
	})
	t.Run("a side effect lost with its lease is uncertain", func(t *testing.T) {
		f := f.on(t)
		for _, c := range []struct {
			name          string
			before, after bool
		}{{"declared", true, true}, {"declared once", true, false}, {"declared later", false, true}} {
			first := f.work(c.name)
			run(f, first, store.StepBegin{SideEffect: c.before})
			fence := takeOver(f, c.name)
			for range 2 {
				r, err := begin(f, fence, store.StepBegin{SideEffect: c.after})
				require.NoError(t, err)
				require.Equal(t, "uncertain", r.Outcome, c.name)
				require.Equal(t, holdpoint.StepUncertain, r.Step.State)
			}
			_, err := finish(f, fence, "h", "")
			requireCode(t, holdpoint.CodeNotAllowedNow, err)
			require.Equal(t, 1, count(f.kinds(first.RunID), "step.uncertain"))
			require.Equal(t, false, f.eventsOf(first.RunID)[4].Data["governed"])
		}
	})
	t.Run("a person resolves", func(t *testing.T) {
		f := f.on(t)
		person := holdpoint.Who{Kind: "person", ID: "p1", How: "session"}
		for _, done := range []bool{true, false} {
			key := map[bool]string{true: "done", false: "not done"}[done]
			first := f.work(key)
			resolve := store.StepResolve{Tenant: f.tenant, RunID: first.RunID, Name: "s", Done: done, ReasonText: []byte("sealed"), Who: person}
			if done {
				resolve.Result, resolve.ResultHash = []byte("found"), "found-hash"
			}
			_, err := f.ResolveStep(f.ctx, resolve)
			requireCode(t, holdpoint.CodeNotFound, err)
			run(f, first, store.StepBegin{SideEffect: true})
			_, err = f.ResolveStep(f.ctx, resolve)
			requireCode(t, holdpoint.CodeNotAllowedNow, err)
			fence := takeOver(f, key)
			_, err = begin(f, fence, store.StepBegin{SideEffect: true})
			require.NoError(t, err)
			step, err := f.ResolveStep(f.ctx, resolve)
			require.NoError(t, err)
			r, err := begin(f, fence, store.StepBegin{SideEffect: true})
			require.NoError(t, err)
			if done {
				require.Equal(t, holdpoint.StepCompleted, step.State)
				require.Equal(t, "done", r.Outcome)
				require.Equal(t, []byte("found"), r.Result)
			} else {
				require.Equal(t, holdpoint.StepPending, step.State)
				require.Equal(t, "run", r.Outcome)
			}
			_, err = f.ResolveStep(f.ctx, resolve)
			requireCode(t, holdpoint.CodeNotAllowedNow, err)
			events := f.eventsOf(first.RunID)
			require.Equal(t, 1, count(f.kinds(first.RunID), "step.resolved"))
			require.Equal(t, person, events[len(events)-1-map[bool]int{true: 0, false: 1}[done]].Who)
		}
	})
	t.Run("a step that was never begun", func(t *testing.T) {
		f := f.on(t)
		_, err := finish(f, f.work("never"), "h", "")
		requireCode(t, holdpoint.CodeNotFound, err)
	})
}
