package engine_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/engine"
)

// What waits for others is no reason to refuse somebody their own list, nor to hide what comes on a later page.
func TestApprovalsOfOthersRefuseNobodyTheirOwn(t *testing.T) {
	w := newWorld(t)
	local := engine.Local("default", "test")
	_, err := w.e.AddPerson(w.ctx, local, "max@acme.example", "correct horse battery")
	require.NoError(t, err)
	roles := "  support-lead: {users: [ana@acme.example]}\n"
	before, order, _ := strings.Cut(strings.Replace(w.policy(), roles, roles+"  planner: {users: [max@acme.example]}\n", 1), "\n  order:\n")
	w.activate(before + "\n  order:\n" + strings.Replace(order, "roles: [support-lead]", "roles: [planner]", 1))
	planner := w.login("max@acme.example")

	mine := w.draft(w.claim("order", "order-1"), `{"reply":"book"}`)
	for _, key := range []string{"ticket-1", "ticket-2"} {
		w.draft(w.claim("ticket-reply", key), `{"reply":"Hello"}`)
	}
	var seen []string
	for cursor, pages := "", 0; pages == 0 || cursor != ""; pages++ {
		page, err := w.e.Approvals(w.ctx, planner, holdpoint.ApprovalPending, cursor, 1)
		require.NoError(t, err)
		for _, ap := range page.Approvals {
			seen = append(seen, ap.ID)
		}
		cursor = page.Next
	}
	require.Equal(t, []string{mine.Approval.ID}, seen)

	key, err := w.e.CreateKey(w.ctx, local, "worker", []holdpoint.Scope{holdpoint.ScopeWork})
	require.NoError(t, err)
	worker, err := w.e.Bearer(w.ctx, key.Key)
	require.NoError(t, err)
	_, err = w.e.Approvals(w.ctx, worker, holdpoint.ApprovalPending, "", 0)
	require.ErrorIs(t, err, &holdpoint.Error{Code: holdpoint.CodeInsufficientScope}, "an empty list would say that nothing waits")
}
