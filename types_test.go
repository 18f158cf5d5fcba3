package holdpoint_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/holdpoint/holdpoint"
)

func TestDurationReadsDays(t *testing.T) {
	for text, want := range map[string]time.Duration{"90s": 90 * time.Second, "30d": 720 * time.Hour, "1d12h": 36 * time.Hour, "0s": 0} {
		var d holdpoint.Duration
		if err := json.Unmarshal([]byte(`"`+text+`"`), &d); err != nil || time.Duration(d) != want {
			t.Errorf("%s reads as %v, %v", text, time.Duration(d), err)
		}
	}
	for _, text := range []string{"", "d", "-1d", "1.5d", "1d1d", "5", "99999d"} {
		var d holdpoint.Duration
		if err := json.Unmarshal([]byte(`"`+text+`"`), &d); err == nil {
			t.Errorf("%q was read as %v", text, time.Duration(d))
		}
	}
}
