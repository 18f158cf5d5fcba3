package engine

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint/internal/store"
)

// pointers is a store whose tenant's active pointer is read slowly: what is read is what stood when the reading began.
type pointers struct {
	store.Store
	hash  string
	reads int
	slow  func()
}

func (s *pointers) TenantByName(_ context.Context, name string) (store.Tenant, error) {
	s.reads++
	t := store.Tenant{Name: name, ActivePolicy: s.hash}
	if s.slow != nil {
		s.slow()
	}
	return t, nil
}

func TestAPointerReadBeforeAMoveIsNotKeptAfterIt(t *testing.T) {
	s := &pointers{hash: "old"}
	p := newPolicies(s)
	p.byHash["t/old"], p.byHash["t/new"] = &loaded{}, &loaded{}
	s.slow = func() { // while the pointer is being read, an activation moves it
		s.slow = nil
		s.hash = "new"
		p.forget()
	}
	_, err := p.active(t.Context(), "t")
	require.NoError(t, err)
	now, err := p.active(t.Context(), "t")
	require.NoError(t, err)
	require.Same(t, p.byHash["t/new"], now)
	require.Equal(t, 2, s.reads)
}

func TestThePointersAgeCountsFromTheBeginningOfItsReading(t *testing.T) {
	s := &pointers{hash: "old"}
	p := newPolicies(s)
	p.byHash["t/old"] = &loaded{}
	var reading time.Time
	s.slow = func() { reading = time.Now() }
	_, err := p.active(t.Context(), "t")
	require.NoError(t, err)
	require.False(t, p.heads["t"].read.After(reading), "a process that is stopped in between must not take it for fresh")
}
