"""From a plan to an executable: partition, fusion, layout, memory and transfers; pure."""
