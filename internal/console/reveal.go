package console

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/net/idna"
)

// span is a piece of foreign text: Text as it is, or a mark in its place. A mark is named by Mark, the end of a
// catalogue key, and Text is then what the mark is about.
type span struct {
	Text string
	Mark string
}

// The marks. Each has a text under "mark." in every catalogue.
const (
	markDirection = "direction" // a control that changes the order of what one reads
	markInvisible = "invisible" // a character without any width or ink
	markControl   = "control"   // a control character
	markSpace     = "space"     // a space that is none of the usual ones
	markLookalike = "lookalike" // punctuation that looks like / . or @
	markStacked   = "stacked"   // more combining marks on a letter than any language writes
	markInvalid   = "invalid"   // a byte that is no UTF-8, or a character that stands for one
	markPrivate   = "private"   // a character without an agreed meaning
	markDomain    = "domain"    // the domain before it is not written in plain letters
	markMixed     = "mixed"     // the word before it mixes alphabets
	markCoded     = "coded"     // the domain before it is the coded form of other letters
)

// reveal splits foreign text so that nothing in it can hide: whatever is invisible, reorders, or pretends to be another
// letter becomes a mark. Joining the spans without marks, and the characters that the marks stand for, gives the text.
func reveal(text string) []span {
	r := revealer{}
	for i := 0; i < len(text); {
		c, size := utf8.DecodeRuneInString(text[i:])
		switch {
		case c == utf8.RuneError && size == 1:
			r.odd(markInvalid, fmt.Sprintf("0x%02X", text[i]))
		case c == '\r' && strings.HasPrefix(text[i+size:], "\n"): // the end of a line, as mail and forms write it
			r.endWord()
			r.plain.WriteRune(c)
			r.last = c
		case c == fullStop && isPlain(r.last) && i+size < len(text) && isPlain(rune(text[i+size])):
			r.odd(markLookalike, fmt.Sprintf("U+%04X", c)) // a browser reads it as the dot of a domain
		default:
			r.rune(c)
		}
		i += size
	}
	r.endWord()
	r.flush()
	return r.spans
}

// oddities counts the marks in a text.
func oddities(text string) int {
	n := 0
	for _, s := range reveal(text) {
		if s.Mark != "" {
			n++
		}
	}
	return n
}

type revealer struct {
	spans   []span
	plain   strings.Builder
	word    strings.Builder // the present word without anything invisible
	last    rune
	stacked int // combining marks in a row
}

// What may follow a picture without a mark: the selector of its coloured form, and the joiner to the next one.
const (
	colours = 0xfe0f
	joins   = 0x200d
)

func (r *revealer) rune(c rune) {
	mark := oddRune(c)
	picture := unicode.Is(unicode.So, r.last) || unicode.Is(unicode.Sk, r.last) && r.last > 0xffff
	switch {
	case c == colours && picture, c == joins && (picture || r.last == colours):
		r.plain.WriteRune(c) // belongs to the picture before it; no second one hides behind it
		r.last = c
		return
	case mark != "":
		r.odd(mark, fmt.Sprintf("U+%04X", c))
		return
	case unicode.Is(unicode.M, c):
		if r.stacked++; r.stacked > 3 {
			r.odd(markStacked, fmt.Sprintf("U+%04X", c))
			return
		}
	default:
		r.stacked = 0
	}
	r.last = c
	if isWord(c) {
		r.word.WriteRune(c)
	} else {
		r.endWord()
	}
	r.plain.WriteRune(c)
}

func (r *revealer) odd(mark, about string) {
	if mark != markInvisible && mark != markDirection && mark != markStacked {
		r.endWord()
	}
	r.flush()
	r.last = 0
	r.spans = append(r.spans, span{about, mark})
}

func (r *revealer) flush() {
	if r.plain.Len() > 0 {
		r.spans = append(r.spans, span{Text: r.plain.String()})
		r.plain.Reset()
	}
}

// endWord judges the word that ends here and puts a mark behind it if it is not what it seems.
func (r *revealer) endWord() {
	word := strings.Trim(r.word.String(), ".-_")
	r.word.Reset()
	if mark, about := oddWord(word); mark != "" {
		r.flush()
		r.spans = append(r.spans, span{about, mark})
	}
}

func isWord(c rune) bool {
	return unicode.In(c, unicode.L, unicode.N, unicode.M) || c == '-' || c == '.' || c == '_'
}

// fullStop is the ideographic one, which ends a sentence except between plain letters.
const fullStop = 0x3002

// isPlain reports whether c is an ASCII letter or digit.
func isPlain(c rune) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// oddRune names the mark of a character that is never shown as it is, or "".
func oddRune(c rune) string {
	switch {
	case c == '\n' || c == '\t' || c == ' ' || c == 0xa0:
		return ""
	case c == 0x061c || c == 0x200e || c == 0x200f || c >= 0x202a && c <= 0x202e || c >= 0x2066 && c <= 0x2069:
		return markDirection
	case c == 0x2028 || c == 0x2029 || unicode.Is(unicode.Cc, c):
		return markControl
	case unicode.Is(unicode.Cf, c), invisible[c],
		c >= 0xfe00 && c <= 0xfe0f, c >= 0x180b && c <= 0x180f, c >= 0xe0000 && c <= 0xe0fff:
		return markInvisible
	case unicode.Is(unicode.Zs, c):
		return markSpace
	case lookalikes[c]:
		return markLookalike
	case c == utf8.RuneError:
		return markInvalid
	case unicode.Is(unicode.Co, c), !unicode.IsPrint(c) && !unicode.In(c, unicode.L, unicode.M, unicode.N, unicode.P, unicode.S):
		return markPrivate
	}
	return ""
}

// invisible holds letters and symbols that have no ink.
var invisible = map[rune]bool{0x034f: true, 0x115f: true, 0x1160: true, 0x17b4: true, 0x17b5: true, 0x2800: true, 0x3164: true, 0xffa0: true}

// lookalikes holds punctuation that is read as /, ., @ or : in an address.
var lookalikes = map[rune]bool{0x2024: true, 0x2044: true, 0x2215: true, 0x29f8: true, 0x2236: true, 0xa789: true,
	0xfe52: true, 0xfe55: true, 0xfe6b: true, 0xff0e: true, 0xff0f: true, 0xff1a: true, 0xff20: true, 0xff61: true}

// confusable lists the scripts whose letters pass for Latin ones.
var confusable = []*unicode.RangeTable{unicode.Cyrillic, unicode.Greek, unicode.Armenian, unicode.Cherokee, unicode.Coptic, unicode.Lisu}

// oddWord names the mark of a word that is not what it seems, or "".
func oddWord(word string) (mark, about string) {
	ascii, latin, other := true, false, false
	for _, c := range word {
		ascii = ascii && c < utf8.RuneSelf
		latin = latin || unicode.Is(unicode.Latin, c)
		other = other || unicode.In(c, confusable...)
	}
	domain := isDomain(word)
	switch {
	case ascii && domain && strings.Contains(strings.ToLower("."+word), ".xn--"):
		return markCoded, word
	case ascii:
		return "", ""
	case domain:
		coded, err := idna.Lookup.ToASCII(word)
		if err != nil {
			return markMixed, ""
		}
		return markDomain, coded
	case latin && other:
		return markMixed, ""
	}
	return "", ""
}

// isDomain reports whether a word reads as a domain: labels between dots, the last of at least two letters.
func isDomain(word string) bool {
	labels := strings.Split(word, ".")
	if len(labels) < 2 || slices.Contains(labels, "") {
		return false
	}
	last := labels[len(labels)-1]
	if strings.HasPrefix(strings.ToLower(last), "xn--") {
		return true
	}
	for _, c := range last {
		if !unicode.IsLetter(c) && !unicode.IsMark(c) {
			return false
		}
	}
	return utf8.RuneCountInString(last) >= 2
}
