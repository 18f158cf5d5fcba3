package console

import (
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestRevealMarksWhatMisleads(t *testing.T) {
	for name, c := range map[string]struct {
		text  string
		marks []string // mark and what it is about
	}{
		"plain":                {"Grüße an Zoë, naïve Œuvre — 5 €\n\tZeile zwei", nil},
		"other languages":      {"Привет, мир. Γειά σου κόσμε. שלום עולם مرحبا 日本語。です", nil},
		"emoji":                {"❤️ 👨‍👩‍👧 👍🏽 ❤️‍🔥", nil},
		"behind an emoji":      {"❤\ufe0f\ufe0f \u2764\u200d\u200d", []string{"invisible U+FE0F", "invisible U+200D"}},
		"bidi override":        {"pay \u202e001\u202c now", []string{"direction U+202E", "direction U+202C"}},
		"bidi isolate":         {"\u2066x\u2069\u200f\u061c", []string{"direction U+2066", "direction U+2069", "direction U+200F", "direction U+061C"}},
		"zero width":           {"pay\u200bpal \ufeff\u2060\u00ad\u200d", []string{"invisible U+200B", "invisible U+FEFF", "invisible U+2060", "invisible U+00AD", "invisible U+200D"}},
		"tags":                 {"hi\U000E0041\U000E0042", []string{"invisible U+E0041", "invisible U+E0042"}},
		"fillers":              {"\u3164\u2800\u115f\u034f", []string{"invisible U+3164", "invisible U+2800", "invisible U+115F", "invisible U+034F"}},
		"variation selectors":  {"a\ufe0f b\U000E0100", []string{"invisible U+FE0F", "invisible U+E0100"}},
		"control":              {"a\x00b\x1b[31m\rc\u0085\u2028", []string{"control U+0000", "control U+001B", "control U+000D", "control U+0085", "control U+2028"}},
		"lines":                {"one\r\ntwo\rthree", []string{"control U+000D"}},
		"spaces":               {"a\u2003b\u00a0c", []string{"space U+2003"}},
		"full stop":            {"evil\u3002example iPhone\u3002 \u65e5\u672c\u8a9e\u3002abc", []string{"lookalike U+3002"}},
		"slash":                {"acme.example\u2215evil.example \uff20", []string{"lookalike U+2215", "lookalike U+FF20"}},
		"invalid":              {"a\xffb\ufffd", []string{"invalid 0xFF", "invalid U+FFFD"}},
		"private":              {"\ue000", []string{"private U+E000"}},
		"stacked":              {"a\u0301\u0302\u0303\u0304\u0305", []string{"stacked U+0304", "stacked U+0305"}},
		"mixed word":           {"your p\u0430ypal account", []string{"mixed "}},
		"cyrillic domain":      {"see \u0430pple.com/x", []string{"domain xn--pple-43d.com"}},
		"whole-script domain":  {"\u0430\u0440\u0440\u04cf\u0435.com", []string{"domain xn--80ak6aa92e.com"}},
		"umlaut domain":        {"a@müller.example", []string{"domain xn--mller-kva.example"}},
		"full width":           {"ｅvil.example", []string{"domain evil.example"}},
		"coded domain":         {"https://xn--80ak6aa92e.com/", []string{"coded xn--80ak6aa92e.com"}},
		"hidden in a domain":   {"p\u0430y\u200bpal.com", []string{"invisible U+200B", "domain xn--pypal-4ve.com"}},
		"numbers and versions": {"v1.2.3 3.14 e.g. end.Next", nil},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, s := range reveal(c.text) {
				if s.Mark != "" {
					got = append(got, s.Mark+" "+s.Text)
				}
			}
			require.Equal(t, c.marks, got)
			require.Equal(t, len(c.marks), oddities(c.text))
		})
	}
}

// What is shown without a mark contains nothing hidden, and nothing of the text is lost.
func TestRevealLosesAndHidesNothing(t *testing.T) {
	odd := []rune{0x202e, 0x200b, 0xfe0f, 0x200d, 0x0430, 'a', '.', 'c', '\n', '\r', 0x2764, 0x0301, 0xff0e, 0, 0xe0041, ' '}
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.String(), rapid.StringOf(rapid.SampledFrom(odd)), rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) })).Draw(t, "text")
		var back strings.Builder
		for _, s := range reveal(text) {
			switch {
			case s.Mark == "":
				back.WriteString(s.Text)
				for _, c := range strings.ReplaceAll(s.Text, "\r\n", "\n") {
					if c != 0xfe0f && c != 0x200d && (unicode.Is(unicode.Cf, c) || unicode.Is(unicode.Cc, c) && c != '\n' && c != '\t') {
						t.Fatalf("%U is shown as it is", c)
					}
				}
			case strings.HasPrefix(s.Text, "U+"):
				n, err := strconv.ParseInt(s.Text[2:], 16, 32)
				if err != nil {
					t.Fatal(err)
				}
				back.WriteRune(rune(n))
			case strings.HasPrefix(s.Text, "0x"):
				n, err := strconv.ParseUint(s.Text[2:], 16, 8)
				if err != nil {
					t.Fatal(err)
				}
				back.WriteByte(byte(n))
			}
		}
		if back.String() != text {
			t.Fatalf("%q became %q", text, back.String())
		}
	})
}

func TestTreeKeepsOrderAndNumbers(t *testing.T) {
	n := tree([]byte(`{"b":1.50,"a":"12","c":[true,null,"",{}],"d":"\u202e","b":12345678901234567890}`))
	require.Equal(t, node{Kind: "object", Items: []node{
		{Name: "b", Kind: "literal", Text: "1.50"},
		{Name: "a", Kind: "text", Text: "12", Odd: true},
		{Name: "c", Kind: "list", Items: []node{{Kind: "literal", Text: "true"}, {Kind: "literal", Text: "null"}, {Kind: "text", Odd: true}, {Kind: "object"}}},
		{Name: "d", Kind: "text", Text: "\u202e"},
		{Name: "b", Kind: "literal", Text: "12345678901234567890"},
	}}, n)
	require.Equal(t, 1, odd(n))
	require.Equal(t, node{Kind: "raw", Text: "not json"}, tree([]byte("not json")))
	require.Equal(t, node{Kind: "raw", Text: `{} {}`}, tree([]byte(`{} {}`)))

	deep := tree([]byte(`{"a":{"a":{"a":{"a":{"a":{"a":{"a":[1,{"b":2}],"c":3}}}}}}}`))
	for range maxNested {
		deep = deep.Items[0]
	}
	require.Equal(t, node{Name: "a", Kind: "raw", Text: `{"a":[1,{"b":2}],"c":3}`}, deep)
}

func TestTreeNeverPanics(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		_ = tree([]byte(rapid.OneOf(rapid.String(), rapid.StringOf(rapid.SampledFrom([]rune(`{}[]":,1a `)))).Draw(t, "document")))
	})
}

func TestOnlyPlainAddressesAreLinks(t *testing.T) {
	for address, live := range map[string]bool{
		"https://acme.example/tickets/1?x=1#y": true, "http://127.0.0.1:3000/": true,
		"https://bank.example@evil.example/": false, "https://xn--80ak6aa92e.com/": false, "https://\u0430pple.com/": false,
		"javascript:alert(1)": false, "https:evil": false, "//evil.example": false, "https://a.example/\\evil": false, "https://a.example/ b": false, "": false,
	} {
		require.Equal(t, live, liveLink(address) != "", address)
	}
}
