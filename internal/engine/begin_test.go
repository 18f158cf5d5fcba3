package engine_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/engine"
	"github.com/holdpoint/holdpoint/internal/store"
)

// forgetful is a store whose first begins commit, but their answers are lost.
type forgetful struct {
	store.Store
	lose atomic.Int32
}

func (s *forgetful) BeginAttempts(ctx context.Context, owner string, a []store.AttemptBegin) ([]store.BegunAttempt, error) {
	begun, err := s.Store.BeginAttempts(ctx, owner, a)
	if err == nil && s.lose.Add(-1) >= 0 {
		return nil, holdpoint.Errorf(holdpoint.CodeUnavailable, "the connection was lost at the commit")
	}
	return begun, err
}

// An attempt that was begun without an answer is still ours: it is sent, once, and nobody has to find out about it.
func TestABeginWithoutAnAnswerIsAskedAgain(t *testing.T) {
	var s *forgetful
	w := newWorldOver(t, func(below store.Store) store.Store { s = &forgetful{Store: below}; return s })
	s.lose.Store(2)
	w.switchOn()
	c := w.claim("order", "order-1")
	w.approve(w.draft(c, `{"reply":"booked"}`))
	v := w.until(c.Run.ID, "settled", func(v engine.RunView) bool {
		return len(v.Effects) == 1 && (v.Effects[0].State == holdpoint.EffectCompleted || v.Effects[0].State == holdpoint.EffectUnknown)
	})
	require.Equal(t, holdpoint.EffectCompleted, v.Effects[0].State)
	require.Equal(t, 1, v.Effects[0].Effect.Attempts)
	require.Equal(t, 1, w.provider.CountPath("/blind"))
}
