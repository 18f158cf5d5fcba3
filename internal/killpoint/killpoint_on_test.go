//go:build killpoints

package killpoint_test

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint/internal/killpoint"
)

// TestKilledAtItsPoint runs this test as a process of its own, which passes a point a few times.
func TestKilledAtItsPoint(t *testing.T) {
	if os.Getenv("HOLDPOINT_KILLPOINT") != "" {
		for range 3 {
			_, _ = os.Stdout.WriteString("pass")
			killpoint.Reach("api.before_answer")
			killpoint.At("ClaimRuns", "committed")
		}
		os.Exit(3)
	}
	for order, want := range map[string]struct {
		passes int
		killed bool
	}{
		"kill:api.before_answer":          {1, true},
		"kill:api.before_answer#1":        {1, true},
		"kill:api.before_answer#3":        {3, true},
		"kill:api.before_answer#4":        {3, false},
		"kill:store.claim_runs.committed": {1, true},
		"kill:claim_runs.committed":       {3, false},
		"other:api.before_answer":         {3, false},
	} {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestKilledAtItsPoint$")
		cmd.Env = append(os.Environ(), "HOLDPOINT_KILLPOINT="+order)
		out, err := cmd.Output()
		var exit *exec.ExitError
		require.True(t, errors.As(err, &exit), order)
		status := exit.Sys().(syscall.WaitStatus)
		require.Equal(t, want.killed, status.Signaled() && status.Signal() == syscall.SIGKILL, order)
		if !want.killed {
			require.Equal(t, 3, exit.ExitCode(), order)
		}
		require.Len(t, out, 4*want.passes, order)
	}
}
