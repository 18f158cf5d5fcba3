package engine_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/engine"
	"github.com/holdpoint/holdpoint/internal/payload"
	"github.com/holdpoint/holdpoint/internal/store"
)

// behind is the store of a replica whose reading of the active pointer stays the same, once it is kept.
type behind struct {
	store.Store
	kept atomic.Pointer[store.Tenant]
}

func (s *behind) TenantByName(ctx context.Context, name string) (store.Tenant, error) {
	if t := s.kept.Load(); t != nil {
		return *t, nil
	}
	return s.Store.TenantByName(ctx, name)
}

// A replica that sends learns of a policy together with what was released under it. It holds no effect and drops no
// message because its own reading of the active pointer is older.
func TestAReplicaBehindThePolicyHoldsNothingAndDropsNothing(t *testing.T) {
	var s *behind
	w := newWorldOver(t, func(below store.Store) store.Store { s = &behind{Store: below}; return s })
	w.switchOn()
	old, err := w.store.TenantByName(w.ctx, "default")
	require.NoError(t, err)
	s.kept.Store(&old)

	// Everything but the dispatcher speaks to a replica that follows at once.
	master, err := payload.NewMaster([]byte(strings.Repeat("k", 32)))
	require.NoError(t, err)
	w.e, err = engine.New(engine.Options{Store: w.store, Master: master, PublicURL: "http://127.0.0.1:8470", ActionsEnabled: true})
	require.NoError(t, err)
	w.activate(strings.ReplaceAll(strings.Replace(w.policy(), "connectors:\n", `channels:
  team: {kind: webhook, url: "PROVIDER/team", secret: "${env:HOOK}"}
connectors:
  later: {kind: http, method: POST, url: "PROVIDER/later", body: {text: "${effect.payload.text}"}, success: [200], timeout: 3s}
`, 1)+`  fresh:
    contract: reply.json
    effects:
      note: {type: crm.note, connector: later, consequence: customer_message, target: "${event.customer.email}", payload: {text: "${draft.reply}"}}
    gate: {roles: [support-lead], approve_by: 24h, execute_by: 48h, notify: [team]}
`, "PROVIDER", w.provider.URL()))
	c := w.claim("fresh", "fresh-1")
	w.approve(w.draft(c, `{"reply":"Hello"}`))
	w.until(c.Run.ID, "sent and told", func(v engine.RunView) bool {
		require.Len(t, v.Effects, 1)
		require.Empty(t, v.Effects[0].Hold)
		settled := v.State == holdpoint.RunCompleted
		for _, m := range v.Messages {
			require.NotContains(t, m.Detail, "no such channel")
			settled = settled && m.State != "pending"
		}
		return settled
	})
	require.Positive(t, w.provider.CountPath("/team"))
}
