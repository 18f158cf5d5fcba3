package faultstore_test

import (
	"context"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
	"github.com/holdpoint/holdpoint/internal/store/faultstore"
)

// clock answers Now and counts how often it was asked; it has no other verb.
type clock struct {
	store.Store
	asked int
}

func (c *clock) Now(context.Context) (time.Time, error) {
	c.asked++
	return time.Unix(1, 0), nil
}

var lost = &holdpoint.Error{Code: holdpoint.CodeUnavailable}

// Each verb passes through the plan: with a fault before its commit it answers without a store below.
func TestEveryVerbPassesThroughThePlan(t *testing.T) {
	s := faultstore.New(nil)
	s.Inject(faultstore.Fault{Kind: faultstore.Before, Times: -1})
	verbs := reflect.TypeFor[store.Store]()
	for m := range verbs.Methods() {
		if m.Name == "Wake" || m.Name == "Close" {
			continue
		}
		method := reflect.ValueOf(s).MethodByName(m.Name)
		args := make([]reflect.Value, m.Type.NumIn())
		for i := range args {
			args[i] = reflect.Zero(m.Type.In(i))
		}
		args[0] = reflect.ValueOf(t.Context())
		out := method.Call(args)
		err, _ := out[len(out)-1].Interface().(error)
		require.ErrorIs(t, err, lost, m.Name)
		require.ErrorIs(t, err, faultstore.ErrInjected, m.Name)
		require.ErrorContains(t, err, m.Name)
		for _, r := range out[:len(out)-1] {
			require.True(t, r.IsZero(), m.Name)
		}
		require.Equal(t, 1, s.Calls()[m.Name])
	}
	require.Len(t, s.Met(), verbs.NumMethod()-2)
}

func TestAFaultMeetsTheCallsThatItNames(t *testing.T) {
	inner := &clock{}
	s := faultstore.New(inner)
	now := func() error {
		at, err := s.Now(t.Context())
		require.Equal(t, err != nil, at.IsZero(), "an answer that is lost brings nothing")
		return err
	}
	require.NoError(t, now())
	s.Inject(faultstore.Fault{Verb: "Now", Kind: faultstore.Before, Nth: 2, Times: 2}, faultstore.Fault{Verb: "Ping", Kind: faultstore.Before})
	require.NoError(t, now())
	require.ErrorIs(t, now(), lost)
	require.ErrorIs(t, now(), lost)
	require.Equal(t, 2, inner.asked, "before commit nothing happens")
	require.NoError(t, now())
	s.Inject(faultstore.Fault{Kind: faultstore.After})
	require.ErrorIs(t, now(), lost)
	require.Equal(t, 4, inner.asked, "after commit it has happened")
	require.NoError(t, now())
	require.Equal(t, []faultstore.Met{{Verb: "Now", Call: 3, Kind: faultstore.Before}, {Verb: "Now", Call: 4, Kind: faultstore.Before}, {Verb: "Now", Call: 6, Kind: faultstore.After}}, s.Met())
	s.Inject(faultstore.Fault{Verb: "Now", Kind: faultstore.Before, Times: -1})
	for range 3 {
		require.ErrorIs(t, now(), lost)
	}
	s.Lift()
	require.NoError(t, now())
}

func TestASlowCallEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := &clock{}
		s := faultstore.New(inner)
		s.Inject(faultstore.Fault{Kind: faultstore.Slow, Delay: time.Minute, Times: 2})
		began := time.Now()
		_, err := s.Now(t.Context())
		require.NoError(t, err)
		require.Equal(t, time.Minute, time.Since(began))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = s.Now(ctx)
		require.ErrorIs(t, err, lost)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, 1, inner.asked)
	})
}

func TestTheSameSeedMeetsTheSameCalls(t *testing.T) {
	run := func(seed uint64) []faultstore.Met {
		s := faultstore.New(&clock{})
		s.Random(seed, 0.1)
		for range 1000 {
			_, _ = s.Now(t.Context())
		}
		return s.Met()
	}
	first := run(1)
	require.InDelta(t, 100, len(first), 40)
	require.Equal(t, first, run(1))
	require.NotEqual(t, first, run(2))
	kinds := map[faultstore.Kind]int{}
	for _, m := range first {
		kinds[m.Kind]++
	}
	require.Len(t, kinds, 2)
	require.Greater(t, kinds[faultstore.After], 25)
	require.Greater(t, kinds[faultstore.Before], 25)
}
