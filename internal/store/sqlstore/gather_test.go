package sqlstore

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/lanes"
)

// batches is a verb that doubles strings, refuses "refused" and breaks every batch that "broken" is in. While held is
// not nil a batch waits for a receive.
type batches struct {
	mu   sync.Mutex
	runs [][]string
	held chan struct{}
}

func (b *batches) run(_ context.Context, in []string) ([]string, []error) {
	b.mu.Lock()
	b.runs = append(b.runs, in)
	b.mu.Unlock()
	if b.held != nil {
		<-b.held
	}
	out, errs := make([]string, len(in)), make([]error, len(in))
	if slices.Contains(in, "broken") {
		for i := range errs {
			errs[i] = unavailable("verb", errors.New("broken"))
		}
		return nil, errs
	}
	for i, s := range in {
		if out[i] = s + s; s == "refused" {
			errs[i] = holdpoint.Errorf(holdpoint.CodeNotFound, "there is no %s", s)
		}
	}
	return out, errs
}

type answered struct {
	out string
	err error
}

// behind calls with every string while one batch is on its way, then lets all through and gives the answers.
func behind(b *batches, g *gather[string, string], all ...string) []answered {
	b.held = make(chan struct{})
	answers := make([]answered, len(all))
	var calls sync.WaitGroup
	calls.Go(func() { _, _ = g.do(context.Background(), "first") })
	synctest.Wait()
	for i, s := range all {
		calls.Go(func() { answers[i].out, answers[i].err = g.do(context.Background(), s) })
		synctest.Wait()
	}
	close(b.held)
	calls.Wait()
	return answers
}

func TestGatherBatchesWhatComesDuringABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &batches{}
		g := newGather("verb", 2, 1, nil, b.run)
		got := behind(b, g, "a", "refused", "c")
		require.Equal(t, "aa", got[0].out)
		require.ErrorIs(t, got[1].err, &holdpoint.Error{Code: holdpoint.CodeNotFound})
		require.Equal(t, "cc", got[2].out)
		require.Equal(t, [][]string{{"first"}, {"a", "refused"}, {"c"}}, b.runs, "one alone at once, then no more than two together")
	})
}

func TestGatherKeepsApartWhatMustBe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &batches{}
		g := newGather("verb", 9, 1, func(s string) any { return strings.ToLower(s) }, b.run)
		behind(b, g, "a", "A", "b", "a")
		require.Equal(t, [][]string{{"first"}, {"a", "b"}, {"A"}, {"a"}}, b.runs)
	})
}

func TestGatherSplitsABrokenBatchDownToItsCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &batches{}
		g := newGather("verb", 9, 1, nil, b.run)
		for i, a := range behind(b, g, "a", "broken", "c", "d") {
			if i == 1 {
				require.ErrorIs(t, a.err, &holdpoint.Error{Code: holdpoint.CodeUnavailable})
				continue
			}
			require.NoError(t, a.err)
		}
	})
}

func TestGatherSendsWhatWaitsTooLongBesideASlowBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &batches{held: make(chan struct{})}
		g := newGather("verb", 9, 3, nil, b.run)
		var calls sync.WaitGroup
		for _, s := range []string{"a", "b", "c", "d", "e"} {
			calls.Go(func() { _, _ = g.do(context.Background(), s) })
			time.Sleep(2 * lanes.Patience)
		}
		synctest.Wait()
		require.Equal(t, [][]string{{"a"}, {"b"}, {"c"}}, b.runs, "three lanes are busy")
		close(b.held)
		calls.Wait()
		require.Equal(t, []string{"d", "e"}, slices.Concat(b.runs[3:]...))
	})
}

func TestGatherLetsACallerLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &batches{held: make(chan struct{})}
		g := newGather("verb", 9, 1, nil, b.run)
		go func() { _, _ = g.do(context.Background(), "first") }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err := g.do(ctx, "gone")
		require.ErrorIs(t, err, &holdpoint.Error{Code: holdpoint.CodeUnavailable})
		close(b.held)
		synctest.Wait()
		require.Equal(t, [][]string{{"first"}}, b.runs, "what was not on its way is not done")
	})
}
