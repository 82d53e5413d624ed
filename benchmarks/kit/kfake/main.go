// kfake on one port, until it is stopped.
package main

import (
	"os"
	"strconv"

	"github.com/twmb/franz-go/pkg/kfake"
)

func main() {
	port, err := strconv.Atoi(os.Args[1])
	if err != nil {
		panic(err)
	}
	if _, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.Ports(port)); err != nil {
		panic(err)
	}
	select {}
}
