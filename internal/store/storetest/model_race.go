//go:build race

package storetest

// sequences are the sequences of each machine. They have one caller: the race detector slows them down and sees little.
const sequences = "2"
