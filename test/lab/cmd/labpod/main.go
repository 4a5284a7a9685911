// labpod is the server in the lab's Pods, and the client that probes them.
//
//	labpod serve NAME
//	labpod probe [flags] tcp|udp|line|stream|streams|download ADDRESS:PORT
//	labpod connections [flags] ADDRESS:PORT...
//	labpod load [flags] ADDRESS:PORT
package main

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "labpod:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 2 && args[0] == "serve" {
		return serve(args[1])
	}
	if len(args) > 0 && args[0] == "connections" {
		return keepConnections(args[1:])
	}
	if len(args) > 0 && args[0] == "load" {
		return load(args[1:], os.Stdout)
	}
	if len(args) > 0 && args[0] == "probe" {
		c := client{out: os.Stdout}
		flags := flag.NewFlagSet("labpod probe", flag.ContinueOnError)
		flags.DurationVar(&c.every, "every", 100*time.Millisecond, "time from one request to the next")
		flags.DurationVar(&c.timeout, "timeout", time.Second, "time after which a request has failed")
		flags.IntVar(&c.count, "count", 0, "number of requests; 0: until SIGTERM")
		flags.IntVar(&c.most, "most", 10, "requests under way at once: a machine too slow for -every is not buried under them")
		flags.BoolVar(&c.serial, "serial", false, "wait for one answer before the next request, instead of every -every")
		flags.IntVar(&c.conns, "conns", 1, "connections of streams")
		flags.BoolVar(&c.walk, "walk", false, "each request has the port after the last one's, from a random one on")
		flags.IntVar(&c.port, "port", 0, "the client's own port; 0: any")
		if err := flags.Parse(args[1:]); err != nil {
			return err
		}
		if flags.NArg() == 2 && c.most > 0 {
			c.network, c.target = flags.Arg(0), flags.Arg(1)
			if c.walk {
				c.port = rand.IntN(ports)
			}
			return c.run()
		}
	}
	return fmt.Errorf("use: labpod serve NAME | labpod probe [flags] tcp|udp|line|stream|streams|download ADDRESS:PORT | " +
		"labpod connections [flags] ADDRESS:PORT [ADDRESS:PORT] | labpod load [flags] ADDRESS:PORT")
}
