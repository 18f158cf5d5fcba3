package lang_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint/internal/lang"
)

func TestSentenceIsBuiltFromStoredEffects(t *testing.T) {
	mail := lang.Item{Type: "email.reply", Connector: "mail", Target: "jane@acme.example"}
	note := lang.Item{Type: "crm.note", Connector: "crm", Target: "C-17"}
	for _, c := range []struct {
		language, want string
		items          []lang.Item
	}{
		{"en", "Send nothing", nil},
		{"en", "Send 1 e-mail to jane@acme.example", []lang.Item{mail}},
		{"de", "1 E-Mail an jane@acme.example senden", []lang.Item{mail}},
		{"en", "Send 2 e-mails to jane@acme.example and 1 more", []lang.Item{mail, mail}},
		{"en", "Send 1 e-mail to jane@acme.example; then write 1 crm.note to C-17", []lang.Item{mail, note}},
		{"en", "Move money once (refund) for %[1]s %d", []lang.Item{{Type: "refund", Target: "%[1]s %d"}}},
		{"xx", "Write 1 crm.note to C-17", []lang.Item{note}},
	} {
		require.Equal(t, c.want, lang.Sentence(c.language, c.items))
	}
}
