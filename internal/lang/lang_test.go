package lang

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var argument = regexp.MustCompile(`%\[\d\][sd]|%[^%\[]`)

func TestCataloguesSayTheSameThings(t *testing.T) {
	for _, l := range Languages[1:] {
		require.Equal(t, Keys("en"), Keys(l), l)
		for _, k := range Keys("en") {
			text := catalogues[l][k]
			require.NotEmpty(t, strings.TrimSpace(text), "%s %s", l, k)
			want, got := argument.FindAllString(catalogues["en"][k], -1), argument.FindAllString(text, -1)
			slices.Sort(want)
			slices.Sort(got)
			require.Equal(t, slices.Compact(want), slices.Compact(got), "%s %s", l, k)
		}
	}
	for _, k := range Keys("en") {
		if rest, ok := strings.CutPrefix(k, "mail.subject."); ok {
			require.Contains(t, catalogues["en"], "mail.body."+rest)
		}
	}
}

func TestChoose(t *testing.T) {
	require.Equal(t, "de", Choose("de", "en"), "the person's own choice counts first")
	require.Equal(t, "de", Choose("", "fr;q=0.4, de-AT;q=0.9"))
	require.Equal(t, "en", Choose("", "fr"))
	require.Equal(t, "en", Choose("xx", ""))
}

func TestSaidKeepsArguments(t *testing.T) {
	german, in := Said("de", "Not before 2026-03-02 14:05:00 UTC.")
	require.Equal(t, "Nicht vor 2026-03-02 14:05:00 UTC.", german)
	require.Equal(t, "de", in)
	english, in := Said("en", "Anything at all.")
	require.Equal(t, "Anything at all.", english)
	require.Equal(t, "en", in)
}

func TestSentence(t *testing.T) {
	mail := Item{Type: "email.reply", Connector: "smtp", Target: "jane@acme.example"}
	require.Equal(t, "Send 1 e-mail to jane@acme.example", Sentence("en", []Item{mail}))
	require.Equal(t, "1 E-Mail an jane@acme.example senden", Sentence("de", []Item{mail}))
	require.Equal(t, "Send nothing", Sentence("en", nil))
	require.Equal(t, "Send 2 e-mails to jane@acme.example and 1 more; then write 1 crm.note to C-17",
		Sentence("en", []Item{mail, mail, {Type: "crm.note", Target: "C-17"}}))
}
