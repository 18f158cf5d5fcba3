package lang_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint/internal/lang"
)

// FuzzChoose holds that whatever a person and a browser ask for, the answer is a language that there is.
func FuzzChoose(f *testing.F) {
	for _, accept := range []string{"de-AT,de;q=0.9,en;q=0.8", "", "*", "x;q=9", strings.Repeat("de,", 1000), "\xff", "und-u-rg-dezzzz"} {
		f.Add("", accept)
	}
	f.Add("de", "en")
	f.Fuzz(func(t *testing.T, person, accept string) {
		got := lang.Choose(person, accept)
		require.Contains(t, lang.Languages, got)
		if slices.Contains(lang.Languages, person) {
			require.Equal(t, person, got)
		}
	})
}
