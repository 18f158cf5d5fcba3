package payload

import (
	"bytes"
	"strconv"
)

// decimal is a number split into its exact parts: the value is 0.digits × 10^(point+exp), digits without a zero at
// either end. No digits means zero.
type decimal struct {
	negative bool
	digits   []byte
	point    int64
	exp      []byte // digits of the written exponent, without sign and leading zeros
	expMinus bool
}

// smallExponent is the number of exponent digits that are sure to fit an int64 with room for the point.
const smallExponent = 18

// exponent is point+exp; ok is false where that is beyond 10^18, in whichever direction.
func (d decimal) exponent() (n int64, ok bool) {
	if len(d.exp) > smallExponent {
		return 0, false
	}
	e, _ := strconv.ParseInt("0"+string(d.exp), 10, 64)
	if d.expMinus {
		e = -e
	}
	return d.point + e, true
}

// number reads a number and writes its canonical form.
func (s *scanner) number() *scanError {
	start := s.pos
	if s.doc[s.pos] == '-' {
		s.pos++
	}
	whole, err := s.digits()
	if err != nil {
		return err
	}
	if len(whole) > 1 && whole[0] == '0' {
		s.pos -= len(whole) - 1
		return s.fail(flawSyntax)
	}
	var frac []byte
	d := decimal{negative: s.doc[start] == '-'}
	if s.pos < len(s.doc) && s.doc[s.pos] == '.' {
		s.pos++
		if frac, err = s.digits(); err != nil {
			return err
		}
	}
	if s.pos < len(s.doc) && s.doc[s.pos]|0x20 == 'e' {
		s.pos++
		if s.pos < len(s.doc) && (s.doc[s.pos] == '+' || s.doc[s.pos] == '-') {
			d.expMinus = s.doc[s.pos] == '-'
			s.pos++
		}
		if d.exp, err = s.digits(); err != nil {
			return err
		}
		d.exp = bytes.TrimLeft(d.exp, "0")
	}
	d.point = int64(len(whole))
	d.digits = whole
	if len(frac) > 0 {
		d.digits = append(append(make([]byte, 0, len(whole)+len(frac)), whole...), frac...)
	}
	trimmed := bytes.TrimLeft(d.digits, "0")
	d.point -= int64(len(d.digits) - len(trimmed))
	d.digits = bytes.TrimRight(trimmed, "0")
	s.out = d.append(s.out)
	return nil
}

func (s *scanner) digits() ([]byte, *scanError) {
	start := s.pos
	for s.pos < len(s.doc) && isDigit(s.doc[s.pos]) {
		s.pos++
	}
	if s.pos == start {
		return nil, s.wrong()
	}
	return s.doc[start:s.pos], nil
}

// append writes the number in the layout of RFC 8785 (that of ECMAScript), but with all its digits: plain between
// 10^-7 and 10^21, otherwise one digit, the fraction and a power of ten. An exponent is never expanded.
func (d decimal) append(out []byte) []byte {
	if len(d.digits) == 0 {
		return append(out, '0')
	}
	if d.negative {
		out = append(out, '-')
	}
	k := int64(len(d.digits))
	n, ok := d.exponent()
	switch {
	case ok && k <= n && n <= 21:
		out = append(out, d.digits...)
		return appendZeros(out, n-k)
	case ok && 0 < n && n <= 21:
		out = append(out, d.digits[:n]...)
		out = append(out, '.')
		return append(out, d.digits[n:]...)
	case ok && -6 < n && n <= 0:
		out = append(out, '0', '.')
		out = appendZeros(out, -n)
		return append(out, d.digits...)
	}
	out = append(out, d.digits[0])
	if k > 1 {
		out = append(out, '.')
		out = append(out, d.digits[1:]...)
	}
	out = append(out, 'e')
	if ok {
		if n > 0 {
			out = append(out, '+')
		}
		return strconv.AppendInt(out, n-1, 10)
	}
	if d.expMinus {
		return append(append(out, '-'), addSmall(d.exp, 1-d.point)...)
	}
	return append(append(out, '+'), addSmall(d.exp, d.point-1)...)
}

// addSmall adds to a decimal number that is larger than the amount. It works on the digits, because an exponent may fill
// a whole document and converting it to binary takes quadratic time.
func addSmall(digits []byte, amount int64) []byte {
	sum := bytes.Clone(digits)
	for i := len(sum) - 1; i >= 0 && amount != 0; i-- {
		amount += int64(sum[i] - '0')
		digit := (amount%10 + 10) % 10
		sum[i] = byte('0' + digit)
		amount = (amount - digit) / 10
	}
	if amount > 0 {
		sum = append([]byte{byte('0' + amount)}, sum...)
	}
	return bytes.TrimLeft(sum, "0")
}

func appendZeros(out []byte, n int64) []byte {
	for range n {
		out = append(out, '0')
	}
	return out
}
