package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/client"
)

// TestEveryHoldSaysWhatLiftsIt reads what effects show says below a held effect: the command that helps, and none that
// would lift nothing.
func TestEveryHoldSaysWhatLiftsIt(t *testing.T) {
	for hold, says := range map[holdpoint.Hold][]string{
		holdpoint.HoldNone:          nil,
		holdpoint.HoldSwitch:        {"switch status"},
		holdpoint.HoldCredentials:   {"connector release helpdesk"},
		holdpoint.HoldPermission:    {"connector release helpdesk"},
		holdpoint.HoldQuota:         {"connector release helpdesk"},
		holdpoint.HoldConfiguration: {"connector release helpdesk", "effects cancel e1"},
		holdpoint.HoldAuthority:     {"effects cancel e1"},
		holdpoint.HoldExpired:       {"effects cancel e1"},
	} {
		var b strings.Builder
		sayHold(&b, client.Effect{Effect: holdpoint.Effect{EffectSpec: holdpoint.EffectSpec{ID: "e1", Connector: "helpdesk"}, State: holdpoint.EffectPending, Hold: hold}})
		for _, command := range []string{"switch status", "connector release helpdesk", "effects cancel e1"} {
			wanted := slices.Contains(says, command)
			require.Equal(t, wanted, strings.Contains(b.String(), command), "%s: %q", hold, b.String())
		}
	}
}
