package payload_test

import (
	"encoding/json"
	"errors"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/payload"
)

func code(t require.TestingT, err error) holdpoint.Code {
	var e *holdpoint.Error
	require.ErrorAs(t, err, &e)
	return e.Code
}

func TestCanonical(t *testing.T) {
	for doc, want := range map[string]string{
		` { "b" : [ 1 , 2 ] , "a" : { } } `:        `{"a":{},"b":[1,2]}`,
		`{"z":{"y":1,"x":[{"b":0,"a":1}]},"a":""}`: `{"a":"","z":{"x":[{"a":1,"b":0}],"y":1}}`,
		// RFC 8785, section 3.2.3: UTF-16 order puts the emoji before U+FB33.
		`{"\u20ac":"Euro Sign","\r":"CR","\ufb33":"Dalet","1":"One","\ud83d\ude00":"Emoji","\u0080":"Control","\u00f6":"o"}`: "{\"\\r\":\"CR\",\"1\":\"One\",\"\u0080\":\"Control\",\"ö\":\"o\",\"€\":\"Euro Sign\",\"😀\":\"Emoji\",\"\ufb33\":\"Dalet\"}",
		// RFC 8785, section 3.2.2.2.
		`"\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/"`: `"€$\u000f\nA'B\"\\\\\"/"`,
		`"\b\f\n\r\t\u001f\u007f\u2028"`:                  "\"\\b\\f\\n\\r\\t\\u001f\u007f\u2028\"",
		`["a\u0301","\u00e1"]`:                            "[\"a\u0301\",\"á\"]", // NFD is not NFC
		`[true,false,null,[]]`:                            `[true,false,null,[]]`,
		// Numbers.
		`[1,1.0,1e0,10E-1,0.1e+1,100e-2,1.000e00]`:                               `[1,1,1,1,1,1,1]`,
		`[0,-0,0.0,-0e5,0e99999999999999999999]`:                                 `[0,0,0,0,0]`,
		`[9007199254740992,9007199254740993]`:                                    `[9007199254740992,9007199254740993]`,
		`[0.1,-1.50,4.50,2e-3,123456.789e3]`:                                     `[0.1,-1.5,4.5,0.002,123456789]`,
		`[1e20,1e21,123e19,0.000001,0.0000001]`:                                  `[100000000000000000000,1e+21,1.23e+21,0.000001,1e-7]`,
		`[1e1000000000,-12e-1000000000]`:                                         `[1e+1000000000,-1.2e-999999999]`,
		`[1e9223372036854775807,10e9223372036854775806,1e-99999999999999999999]`: `[1e+9223372036854775807,1e+9223372036854775807,1e-99999999999999999999]`,
		`[10e9999999999999999999,0.001e1000000000000000000,100e-1000000000000000000,0.01e-9999999999999999999]`: `[1e+10000000000000000000,1e+999999999999999997,1e-999999999999999998,1e-10000000000000000001]`,
		`[123.4e1999999999999999999999,0.1e-1999999999999999999999]`:                                            `[1.234e+2000000000000000000001,1e-2000000000000000000000]`,
		`333333333.33333329`: `333333333.33333329`, // the deviation: RFC 8785 would round to a double
	} {
		got, err := payload.Canonical([]byte(doc), payload.Limits{})
		require.NoError(t, err, doc)
		require.Equal(t, want, string(got), doc)
		again, err := payload.Canonical(got, payload.Limits{})
		require.NoError(t, err, doc)
		require.Equal(t, want, string(again), "not idempotent: %s", doc)
	}
}

func TestCheckRefuses(t *testing.T) {
	for name, doc := range map[string]string{
		"empty":              ``,
		"white space":        ` `,
		"two values":         `{} {}`,
		"trailing comma":     `[1,]`,
		"trailing member":    `{"a":1,}`,
		"missing colon":      `{"a" 1}`,
		"bare name":          `{a:1}`,
		"comment":            `{} // x`,
		"BOM":                "\ufeff{}",
		"duplicate":          `{"a":1,"b":2,"a":1}`,
		"escaped duplicate":  `{"a":1,"\u0061":2}`,
		"nested duplicate":   `[{"x":{"a":1,"a":1}}]`,
		"invalid UTF-8":      "\"\xff\"",
		"invalid UTF-8 name": "{\"\xc3\x28\":1}",
		"invalid after \\":   "\"\\n\xff\"",
		"surrogate in UTF-8": "\"\xed\xa0\x80\"",
		"overlong":           "\"\xc0\x80\"",
		"NUL escape":         `"a\u0000b"`,
		"NUL name":           `{"\u0000":1}`,
		"raw NUL":            "\"\x00\"",
		"raw control":        "\"\x1f\"",
		"lone high":          `"\ud83d"`,
		"lone low":           `"\ude00"`,
		"high high":          `"\ud83d\ud83d"`,
		"high text":          `"\ud83dx"`,
		"high newline":       `"\ud83d\n"`,
		"bad escape":         `"\x41"`,
		"bad hex":            `"\u00g0"`,
		"single quote":       `'a'`,
		"leading zero":       `01`,
		"minus alone":        `-`,
		"plus":               `+1`,
		"point alone":        `1.`,
		"no whole":           `.5`,
		"exponent alone":     `1e`,
		"NaN":                `NaN`,
		"Infinity":           `-Infinity`,
		"cut literal":        `tru`,
		"long literal":       `nulll`,
		"cut string":         `"abc`,
		"cut escape":         `"abc\`,
		"cut hex":            `"\u00`,
		"cut pair":           `"\ud83d\`,
		"cut object":         `{"a":1`,
		"wrong bracket":      `{"a":1]`,
		"closing first":      `]`,
	} {
		err := payload.Check([]byte(doc), payload.Limits{})
		require.Error(t, err, name)
		require.Equal(t, holdpoint.CodeInvalidJSON, code(t, err), name)
	}
}

func TestCheckErrorsCarryNoContent(t *testing.T) {
	err := payload.Check([]byte(`{"jane@acme.example":"s3cret","jane@acme.example":1}`), payload.Limits{})
	require.NotContains(t, err.Error(), "jane")
	require.NotContains(t, err.Error(), "s3cret")
	require.Contains(t, err.Error(), "send each once")
}

func TestLimits(t *testing.T) {
	deep := func(n int) []byte { return []byte(strings.Repeat("[", n) + strings.Repeat("]", n)) }
	require.NoError(t, payload.Check(deep(100), payload.Limits{}))
	require.Equal(t, holdpoint.CodeTooDeep, code(t, payload.Check(deep(101), payload.Limits{})))
	require.Equal(t, holdpoint.CodeTooDeep, code(t, payload.Check(deep(10_000), payload.Limits{})))
	require.NoError(t, payload.Check(deep(10_000), payload.Limits{MaxDepth: 1 << 30}))
	require.Equal(t, holdpoint.CodeTooDeep, code(t, payload.Check(deep(10_001), payload.Limits{MaxDepth: 1 << 30})))
	require.Equal(t, holdpoint.CodeTooDeep, code(t, payload.Check([]byte(strings.Repeat("[", 500_000)), payload.Limits{})))
	require.Equal(t, holdpoint.CodeTooDeep, code(t, payload.Check([]byte(strings.Repeat(`{"a":`, 101)), payload.Limits{})))
	require.NoError(t, payload.Check([]byte(`"`+strings.Repeat("[", 500)+`\"{"`), payload.Limits{}), "brackets in a string are no depth")

	require.NoError(t, payload.Check([]byte(`"12345678"`), payload.Limits{MaxBytes: 10}))
	require.Equal(t, holdpoint.CodeTooLarge, code(t, payload.Check([]byte(`"123456789"`), payload.Limits{MaxBytes: 10})))
	require.NoError(t, payload.Check([]byte(`"`+strings.Repeat("x", 1<<20-2)+`"`), payload.Limits{}))
	require.Equal(t, holdpoint.CodeTooLarge, code(t, payload.Check(make([]byte, 1<<20+1), payload.Limits{})))
}

// A hostile document of the largest size costs about as much as an ordinary one. The bound is far above that on a busy
// machine under the race detector, and far below what a quadratic scan of such a document takes.
func TestHostileDocumentsAreCheap(t *testing.T) {
	var members strings.Builder
	for i := 80_000; i > 0; i-- {
		members.WriteString(`"` + big.NewInt(int64(i)).Text(36) + `":0,`)
	}
	layers := strings.Repeat(`{"b":0,"a":`, 90) + `"` + strings.Repeat("x", 1<<20-2000) + `"` + strings.Repeat("}", 90)
	for name, doc := range map[string]string{
		"many members":  `{` + members.String() + `"":0}`,
		"long exponent": `1e` + strings.Repeat("9", 1<<20-2),
		"long mantissa": strings.Repeat("9", 1<<20),
		"unsorted deep": layers,
	} {
		start := time.Now()
		_, err := payload.Canonical([]byte(doc), payload.Limits{})
		require.NoError(t, err, name)
		require.Less(t, time.Since(start), 30*time.Second, name)
	}
}

func TestFingerprint(t *testing.T) {
	fp := func(doc string, ignore ...string) string {
		f, err := payload.Fingerprint([]byte(doc), ignore, payload.Limits{})
		require.NoError(t, err, doc)
		require.Len(t, f, 64)
		return f
	}
	base := fp(`{"a":1,"b":[1,2,{"c":3}]}`)
	require.Equal(t, base, fp(` {"b":[1.0,2e0,{"c":3}], "a":1} `))
	require.NotEqual(t, base, fp(`{"a":"1","b":[1,2,{"c":3}]}`))
	require.Equal(t, base, fp(`{"a":1,"b":[1,2,{"c":3}]}`, "/missing", "/b/9", "/b/-", "/a/deeper", "/b/02"))
	require.Equal(t, fp(`{}`), fp(`{"a":1}`, "/a"))
	require.Equal(t, fp(`{"b":[1,2,{}]}`), fp(`{"d":9,"b":[1,2,{"c":4}],"a":1}`, "/b/2/c", "/a", "/d"))
	require.Equal(t, fp(`{"b":[2]}`), fp(`{"b":[1,2]}`, "/b/0"))
	require.Equal(t, fp(`{"b":[]}`), fp(`{"b":[1,2]}`, "/b/1", "/b/0"))
	require.Equal(t, fp(`{"x":1}`), fp(`{"x":1,"a/b":1,"m~n":2,"":3}`, "/a~1b", "/m~0n", "/"))
	require.Equal(t, fp(`{"x":1}`), fp(`{"x":1,"\u0061t":1}`, "/at"), "the decoded name counts")
	require.Equal(t, fp(`{"z":1,"b":2}`), fp(`{"z":1,"m":{"q":1,"a":2},"b":2}`, "/m", "/m/q"))

	for _, bad := range []string{"", "a", "/a~", "/a~2"} {
		_, err := payload.Fingerprint([]byte(`{}`), []string{bad}, payload.Limits{})
		require.Equal(t, holdpoint.CodeInvalidPolicy, code(t, err), bad)
	}
	_, err := payload.Fingerprint([]byte(`{"a":1,"a":2}`), []string{"/a"}, payload.Limits{})
	require.Equal(t, holdpoint.CodeInvalidJSON, code(t, err), "a duplicate is refused also where it is ignored")
}

func TestRuleHash(t *testing.T) {
	require.Equal(t, payload.RuleHash(nil), payload.RuleHash([]string{}))
	require.Equal(t, payload.RuleHash([]string{"/a", "/b"}), payload.RuleHash([]string{"/b", "/a", "/b"}))
	seen := map[string]bool{}
	for _, rule := range [][]string{nil, {""}, {"/a"}, {"/a", "/b"}, {"/a/b"}, {"/a/", "b"}} {
		seen[payload.RuleHash(rule)] = true
	}
	require.Len(t, seen, 6)
	order := []string{"/b", "/a"}
	payload.RuleHash(order)
	require.Equal(t, []string{"/b", "/a"}, order, "the caller's list is left alone")
}

// value generates JSON and, for the same value, a second text with other member order, white space, escapes and numbers.
type twin struct{ one, two string }

func value(depth int) *rapid.Generator[twin] {
	return rapid.Custom(func(t *rapid.T) twin {
		kinds := []int{0, 1, 2, 3, 4, 5, 5}
		switch depth {
		case 0:
			kinds = kinds[:4]
		case 4:
			kinds = kinds[4:] // a container at the top
		}
		switch rapid.SampledFrom(kinds).Draw(t, "kind") {
		case 0:
			n := rapid.SampledFrom([]twin{{"1", "10e-1"}, {"0", "-0.0"}, {"-15e2", "-1500"}, {"9007199254740993", "9007199254740993.0"},
				{"1e400", "0.01E+402"}, {"0.000123", "1.23e-4"}}).Draw(t, "number")
			return n
		case 1:
			s := name().Draw(t, "string")
			return twin{quote(s), escapeAll(s)}
		case 2:
			return twin{"true", " true "}
		case 3:
			return twin{"null", "\tnull\n"}
		case 4:
			items := rapid.SliceOfN(value(depth-1), 0, 4).Draw(t, "items")
			var a, b []string
			for _, i := range items {
				a, b = append(a, i.one), append(b, i.two)
			}
			return twin{"[" + strings.Join(a, ",") + "]", "[ " + strings.Join(b, " , ") + " ]"}
		default:
			names := rapid.SliceOfNDistinct(name(), 0, 5, rapid.ID[string]).Draw(t, "names")
			var a, b []string
			for _, n := range names {
				v := value(depth-1).Draw(t, "value")
				a = append(a, quote(n)+":"+v.one)
				b = append(b, escapeAll(n)+" : "+v.two)
			}
			return twin{"{" + strings.Join(a, ",") + "}", "{" + strings.Join(rapid.Permutation(b).Draw(t, "order"), ",") + "}"}
		}
	})
}

func name() *rapid.Generator[string] {
	return rapid.StringOfN(rapid.SampledFrom([]rune("ab\"\\/\n\u007fé\ue000\uffff😀\U0010ffff")), 0, 4, -1)
}

func quote(s string) string {
	b, _ := json.Marshal(s)
	return string(b)
}

func escapeAll(s string) string {
	b, _ := json.Marshal(s)
	return strings.NewReplacer("a", `\u0061`, "😀", `\uD83D\uDE00`, "é", `\u00E9`, "/", `\/`).Replace(string(b))
}

func TestCanonicalProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := value(4).Draw(t, "value")
		one, err := payload.Canonical([]byte(v.one), payload.Limits{})
		require.NoError(t, err)
		two, err := payload.Canonical([]byte(v.two), payload.Limits{})
		require.NoError(t, err)
		require.Equal(t, string(one), string(two), "order, white space, escapes and number form must not matter")
		again, err := payload.Canonical(one, payload.Limits{})
		require.NoError(t, err)
		require.Equal(t, string(one), string(again), "canonical form must be idempotent")
		require.Equal(t, decoded(t, []byte(v.one)), decoded(t, one), "the value must not change")
	})
}

// decoded reads JSON with encoding/json, numbers as exact fractions.
func decoded(t require.TestingT, doc []byte) any {
	d := json.NewDecoder(strings.NewReader(string(doc)))
	d.UseNumber()
	var v any
	require.NoError(t, d.Decode(&v), "%s", doc)
	return exact(v)
}

func exact(v any) any {
	switch v := v.(type) {
	case []any:
		for i := range v {
			v[i] = exact(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = exact(v[k])
		}
	case json.Number:
		if r, ok := new(big.Rat).SetString(string(v)); ok {
			return "number " + r.String()
		}
		mantissa, _, _ := strings.Cut(strings.ToLower(string(v)), "e")
		if strings.Trim(mantissa, "-0.") == "" {
			return "number 0/1" // zero, whatever its exponent
		}
		return "beyond"
	}
	return v
}

func FuzzCanonical(f *testing.F) {
	for _, seed := range []string{`{"b":1,"a":[1e5,-0.10,"\ud83d\ude00"]}`, `{"a":{},"a":1}`, `[1e99999,0.0,"\u0000"]`, "\"\xff\"", `[[[[`,
		`{"😀":1,"\ufb33":2}`, `1e-99999999999999999999`, ` "x" `, `0e9227000000000000000`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		got, err := payload.Canonical(doc, payload.Limits{})
		if err != nil {
			var e *holdpoint.Error
			require.True(t, errors.As(err, &e))
			return
		}
		require.True(t, json.Valid(doc), "what is accepted is JSON: %q", doc)
		require.True(t, json.Valid(got), "%q", got)
		again, err := payload.Canonical(got, payload.Limits{})
		require.NoError(t, err)
		require.Equal(t, string(got), string(again))
		if len(doc) < 1000 {
			require.Equal(t, decoded(t, doc), decoded(t, got))
		}
	})
}

func BenchmarkFingerprint(b *testing.B) {
	doc := []byte(`{"id":"evt_1","type":"ticket.created","customer":{"id":"c_81","email":"jane@acme.example","plan":"pro"},` +
		`"subject":"Where is my order?","body":"` + strings.Repeat("I ordered a chair. ", 40) + `","tags":["a","b"],"amount":12.50,"delivered_at":"2026-01-01T00:00:00Z"}`)
	b.SetBytes(int64(len(doc)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := payload.Fingerprint(doc, []string{"/delivered_at"}, payload.Limits{}); err != nil {
			b.Fatal(err)
		}
	}
}
