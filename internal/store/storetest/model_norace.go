//go:build !race

package storetest

// sequences are the sequences of each machine.
const sequences = "6"
